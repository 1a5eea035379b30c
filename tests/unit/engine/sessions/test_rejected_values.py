"""Values that no store accepts, bytes that cannot be read back: an error, and nothing hangs."""

import pytest

import holdfast
from holdfast.core.errors import HoldfastError, InvalidItem, StoreError
from holdfast.core.ids import TurnId
from holdfast.core.model.session import Usage
from holdfast.core.transaction.commands import StoredCompletion
from holdfast.engine.settings import LaneSettings
from tests.unit.engine.harness import open_engine


async def test_an_end_that_the_store_refuses_gives_its_lane_back() -> None:
    async with open_engine(settings=LaneSettings(max_wait_seconds=5.0)) as engine:
        run = await engine.enter("one")
        with pytest.raises(StoreError):
            await engine.finish(run, "lost", completion=StoredCompletion("\ud800", b"{}"))
        engine.gateway.leave(run)
        await engine.finish(await engine.enter("two"), "answered")
        refused = await engine.turn(run.turn)
        assert (refused.outcome, refused.error_code) == ("failed", "turn_failed")


async def test_implausible_counts_are_treated_as_missing() -> None:
    async with open_engine() as engine:
        for usage in (Usage(2**70), Usage(0, 0, -1), Usage(2**63 - 1)):
            run = await engine.enter("one")
            await engine.finish(run, "answered", usage=usage)
            (recorded,) = await engine.gateway.read.runs(run.turn.id)
            assert (recorded.outcome, recorded.input_tokens) == ("completed", None)
        view = await engine.gateway.read.session(engine.caller.tenant, session_id=run.session.id)
        assert view is not None
        assert (view.session.input_tokens, view.session.output_tokens) == (0, 0)


async def test_a_store_in_memory_outlives_a_statement_that_failed() -> None:
    async with holdfast.open("memory:") as hf:
        session = await hf.session("k")
        await session.append("kept")
        with pytest.raises(HoldfastError):
            await hf.gateway.read.runs(TurnId(["not", "a", "name"]))  # type: ignore[arg-type]
        assert len(await session.items()) == 1


async def test_bytes_that_are_no_text_are_refused_before_they_are_kept() -> None:
    async with holdfast.open("memory:") as hf:
        session = await hf.session("k")
        with pytest.raises(InvalidItem):
            await session.append(b'{"type":"x","s":"\xff"}')
        assert await session.items() == []


async def test_a_number_that_fits_no_float_is_kept_as_it_came_and_can_be_read() -> None:
    async with holdfast.open("memory:") as hf:
        session = await hf.session("k")
        await session.append(b'{"type":"x","n":1e999}')
        assert await session.items() == [{"type": "x", "n": float("inf")}]
        async with session.turn("hello") as turn:
            assert len(await turn.context()) == 2
            turn.add("hi")
