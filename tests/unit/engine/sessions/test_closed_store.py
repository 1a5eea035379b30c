"""A store that was closed meanwhile: callers get the error at once, and nothing is retried."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import StoreClosed
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.sessions import submission
from holdfast.engine.settings import LaneSettings


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pauses to ask again would do so for longer than any test takes."""
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 1000.0)


@pytest.mark.usefixtures("_no_waiting")
async def test_a_turn_that_is_left_after_its_store_was_closed_ends_at_once(
    any_store_url: str,
) -> None:
    async with holdfast.open(any_store_url) as hf:
        turn = (await hf.session("k")).turn("one")
        await turn.__aenter__()
        turn.add("answer")
    with pytest.raises(StoreClosed):
        async with asyncio.timeout(30):
            await turn.__aexit__(None, None, None)


async def test_a_turn_that_waits_when_its_store_is_closed_fails_at_once(
    any_store_url: str,
) -> None:
    lanes = LaneSettings(lease_seconds=600.0)
    async with holdfast.open(any_store_url, lanes=lanes) as hf:
        session = await hf.session("k")
        await session.turn("one").__aenter__()
        waiting = asyncio.create_task(session.turn("two").__aenter__())
        while (await session.view()).queued_turns == 0:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        async with asyncio.timeout(30):
            await waiting


async def test_a_turn_that_waited_in_a_closed_store_can_be_sent_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        await session.turn("one").__aenter__()
        waiting = asyncio.create_task(session.turn("two", idempotency_key="i").__aenter__())
        while (await session.view()).queued_turns == 0:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0)
    await asyncio.gather(waiting, return_exceptions=True)
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with asyncio.timeout(30), session.turn("two", idempotency_key="i") as turn:
            turn.add("answer")
        statuses = [view.status for view in await session.turns()]
        assert statuses == ["completed", "interrupted"]


@pytest.mark.usefixtures("_no_waiting")
async def test_what_was_left_open_is_taken_up_when_the_store_is_opened_again(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    async with holdfast.open(url) as hf:
        turn = (await hf.session("k")).turn("one", idempotency_key="i")
        await turn.__aenter__()
    with pytest.raises(StoreClosed):
        await turn.__aexit__(None, None, None)
    async with holdfast.open(url) as hf:
        session = await hf.session("k")
        async with session.turn("one", idempotency_key="i") as again:
            assert again.id == turn.id
            again.add("answer")
        assert len(await session.items()) == 2


USES: list[Callable[[Holdfast, SessionHandle], Awaitable[Any]]] = [
    lambda hf, _: hf.session("k"),
    lambda hf, _: hf.session("new"),
    lambda hf, _: hf.session(),
    lambda hf, session: hf.session(id=session.id),
    lambda hf, _: hf.sessions(),
    lambda _, session: session.view(),
    lambda _, session: session.items(),
    lambda _, session: session.turns(),
    lambda _, session: session.append("x"),
    lambda _, session: session.turn("x").__aenter__(),
    lambda _, session: session.reset(),
    lambda _, session: session.restore(session.id),
    lambda _, session: session.fork(),
    lambda _, session: session.delete(),
    lambda hf, _: hf.gateway.store.has_news(),
    lambda hf, _: hf.gateway.store.workers(),
    lambda hf, _: hf.gateway.store.enlist(hf.gateway.worker.id, 1.0),
]


@pytest.mark.usefixtures("_no_waiting")
async def test_every_use_of_a_closed_store_raises_store_closed(any_store_url: str) -> None:
    async with holdfast.open(any_store_url) as hf:
        session = await hf.session("k")
    for use in USES:
        with pytest.raises(StoreClosed, match="closed"):
            async with asyncio.timeout(30):
                await use(hf, session)


async def test_a_store_is_closed_as_often_as_one_likes(any_store_url: str) -> None:
    async with holdfast.open(any_store_url) as hf:
        store = hf.gateway.store
    await store.close()
    await store.close()
