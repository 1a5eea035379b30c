"""Values that no store can take, bytes that cannot be read back: named, and nothing is stuck."""

import pytest

import holdfast
from holdfast.core.errors import HoldfastError, InvalidItem
from holdfast.core.ids import TurnId


async def test_an_end_that_the_store_refuses_gives_its_lane_back() -> None:
    lanes = holdfast.LaneSettings(max_wait_seconds=5.0)
    async with holdfast.open("memory:", lanes=lanes) as hf:
        session = await hf.session("k")
        with pytest.raises((HoldfastError, OverflowError)):
            async with session.turn("one") as turn:
                turn.spent(holdfast.Usage(input_tokens=2**70))
        async with session.turn("two") as turn:
            turn.add("answered")
        assert [item["role"] for item in await session.items()] == ["user", "user", "assistant"]


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
