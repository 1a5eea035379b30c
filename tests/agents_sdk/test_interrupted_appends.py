"""Cancelled appends and closed event loops: acknowledged items are stored."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from agents import RunContextWrapper, SQLiteSession

from holdfast import HoldfastError
from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from holdfast.core.errors import StoreUnavailable
from tests.agents_sdk.fake_model import FakeModel, agent_of
from tests.agents_sdk.test_session_protocol import say

ROUNDS = 30


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_items_added_after_a_cancelled_batch_are_stored(
    session: HoldfastSession, steps: int
) -> None:
    run: RunContextWrapper[Any] = RunContextWrapper(None)
    await session.get_items(wrapper=run)
    await session.add_items(say("asked"), wrapper=run)
    for n in range(ROUNDS):
        adding = asyncio.ensure_future(session.add_items(say(f"cancelled {n}"), wrapper=run))
        for _ in range(steps):
            await asyncio.sleep(0)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await session.add_items(say(f"kept {n}"), wrapper=run)
    kept = [item["content"] for item in await session.get_items()]  # type: ignore[typeddict-item]
    assert [text for text in kept if "kept" in text] == [f"kept {n}" for n in range(ROUNDS)]
    assert kept[0] == "asked"


async def test_resending_an_unanswered_batch_does_not_duplicate_it(
    shared: HoldfastSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: RunContextWrapper[Any] = RunContextWrapper(None)
    await shared.get_items(wrapper=run)
    add = shared._backend.add

    async def lose_response(*given: Any, **named: Any) -> None:
        before = given[0].ordinal
        await add(*given, **named)
        given[0].ordinal = before
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(shared._backend, "add", lose_response)
    with pytest.raises(StoreUnavailable):
        await shared.add_items(say("once"), wrapper=run)
    monkeypatch.undo()
    await shared.add_items(say("once"), wrapper=run)
    await shared.add_items(say("once"), wrapper=run)
    assert await shared.get_items() == say("once", "once"), "sent again once, and said again once"


def test_closed_event_loops_leave_no_threads_or_connections(shared_store: str) -> None:
    process = psutil.Process()

    def in_own_event_loop(n: int) -> None:
        asyncio.run(HoldfastSession("web", shared_store).add_items(say(str(n))))

    with pytest.warns(ResourceWarning) if "postgres" in shared_store else _no_warning():
        in_own_event_loop(0)
        in_own_event_loop(1)
        threads, files = threading.active_count(), process.num_fds()
        for n in range(2, 12):
            in_own_event_loop(n)
        assert threading.active_count() <= threads
        assert process.num_fds() <= files + 3
        session = HoldfastSession("web", shared_store)

        async def read_all() -> list[Any]:
            async with session:
                return await session.get_items()

        assert asyncio.run(read_all()) == say(*(str(n) for n in range(12)))
        gc.collect()


class _no_warning:  # noqa: N801 - stands for a context manager
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


async def test_settings_assigned_later_may_be_a_plain_dict(session: HoldfastSession) -> None:
    await session.add_items(say("a", "b"))
    session.session_settings = {"limit": 1}  # type: ignore[assignment]
    assert await session.get_items() == say("b")


async def test_an_in_memory_session_rejects_a_second_event_loop() -> None:
    async with HoldfastSession("k", "memory:") as session:
        await session.add_items(say("a"))
        with pytest.raises(HoldfastError, match="one event loop"):
            await asyncio.to_thread(asyncio.run, session.add_items(say("b")))
        assert await session.get_items() == say("a")


def test_an_in_memory_session_outlives_its_event_loop(tmp_path: Path) -> None:
    session = HoldfastSession("k", "memory:")
    asyncio.run(session.add_items(say("a")))
    asyncio.run(session.add_items(say("b")))
    assert asyncio.run(session.get_items()) == say("a", "b")


async def test_the_runner_rejects_sessions_of_other_kinds(tmp_path: Path) -> None:
    sdk_session: Any = SQLiteSession("k", tmp_path / "k.db")
    with pytest.raises(HoldfastError, match="needs a HoldfastSession"):
        await HoldfastRunner.run(agent_of(FakeModel("hello")), "hi", session=sdk_session)
    sdk_session.close()
