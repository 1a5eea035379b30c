"""A caller that is cancelled at any step: nothing hangs, is lost or happens twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import holdfast
from holdfast.core.errors import HoldfastError, TurnCancelled
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.settings import LaneSettings

STEPS = 60
"""More than anything below takes on a store in memory; a test says if it is not enough."""


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    # So long that nothing below is mended because somebody came by to look.
    async with holdfast.open("memory:", lanes=LaneSettings(lease_seconds=600.0)) as opened:
        yield opened


async def texts(session: SessionHandle, view: str = "visible") -> list[str]:
    found = await session.items(view=view)  # type: ignore[arg-type]
    return [item["content"][0]["text"] for item in found]


async def converse(session: SessionHandle, text: str) -> None:
    async with session.turn(text, idempotency_key=f"i-{text}") as turn:
        if turn.is_done:
            return
        await turn.context()
        turn.add(f"first of {text}")
        await turn.checkpoint()
        turn.add(f"second of {text}")


def whole(text: str) -> list[str]:
    return [text, f"first of {text}", f"second of {text}"]


async def cancel_after(steps: int, work: Awaitable[None]) -> bool:
    """Cancel some work after so many steps of the loop; return whether it was not done by then."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    is_cut = task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    except HoldfastError as exc:
        raise AssertionError(f"cancelled, and not told so: {exc!r}") from exc
    assert not is_cut, "a cancellation was swallowed"
    return False


async def check_alive(session: SessionHandle, *done: str) -> None:
    """See that the next turn runs, that retries end, and that each of them is there once."""
    async with asyncio.timeout(30):
        await converse(session, "next")
        for text in done:
            await converse(session, text)
    said = await texts(session)
    for text in ("next", *done):
        places = [place for place, one in enumerate(said) if one == text]
        assert len(places) == 1, said
        block = said[places[0] :]
        assert [one for one in block if one.endswith(f"of {text}")][-1] == f"second of {text}"
    view = await session.view()
    assert (view.status, view.queued_turns) == ("idle", 0)
    assert {turn.status for turn in await session.turns(limit=50)} == {"completed"}


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_turn_that_is_cut_off_at_any_step_is_whole_after_its_retry(
    hf: Holdfast, steps: int
) -> None:
    session = await hf.session("k")
    is_cut = await cancel_after(steps, converse(session, "one"))
    assert is_cut or await texts(session) == whole("one")
    await check_alive(session, "one")


@pytest.mark.parametrize("steps", range(STEPS))
async def test_a_turn_that_is_cut_off_at_any_step_of_its_waiting_holds_nobody_up(
    hf: Holdfast, steps: int
) -> None:
    session = await hf.session("k")
    first = session.turn("zero", idempotency_key="i-zero")
    await first.__aenter__()
    first.add("first of zero")
    first.add("second of zero")
    ending = asyncio.create_task(_end_after(steps // 2, first))
    await cancel_after(steps, converse(session, "one"))
    await ending
    await check_alive(session, "zero", "one")


@pytest.mark.parametrize("steps", range(STEPS // 2))
async def test_a_retry_that_is_cut_off_at_any_step_holds_nobody_up_either(
    hf: Holdfast, steps: int
) -> None:
    session = await hf.session("k")
    first = session.turn("zero", idempotency_key="i-zero")
    await first.__aenter__()
    first.add("first of zero")
    first.add("second of zero")
    await cancel_after(STEPS // 2, converse(session, "one"))
    await cancel_after(steps, converse(session, "one"))
    for _ in range(STEPS):
        await asyncio.sleep(0)
    assert (await session.view()).queued_turns == 0
    await first.__aexit__(None, None, None)
    await check_alive(session, "zero", "one")


async def _end_after(steps: int, turn: holdfast.TurnHandle) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)
    await turn.__aexit__(None, None, None)


Deed = Callable[[SessionHandle], Awaitable[object]]
DEEDS: dict[str, Deed] = {
    "append": lambda session: session.append("x", batch_id=session.key),
    "reset": lambda session: session.reset(),
    "fork": lambda session: session.fork(),
    "delete": lambda session: session.delete(),
    "items": lambda session: session.items(),
}


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("deed", DEEDS)
async def test_whatever_else_is_cut_off_leaves_a_session_that_goes_on(
    hf: Holdfast, deed: str, *, is_busy: bool
) -> None:
    for steps in range(20):
        session = await hf.session(f"k{steps}")
        running = session.turn("running")
        if is_busy:  # in a task of its own, which is cancelled when the lane is lost
            await asyncio.create_task(running.__aenter__())
        await cancel_after(steps, _do(DEEDS[deed], session))
        if is_busy:
            with contextlib.suppress(TurnCancelled):
                await running.__aexit__(None, None, None)
        async with asyncio.timeout(30):
            await converse(session, f"next{steps}")
        assert (await texts(session))[-3:] == whole(f"next{steps}")


async def _do(deed: Deed, session: SessionHandle) -> None:
    await deed(session)


async def test_the_steps_are_enough_to_see_a_turn_through(hf: Holdfast) -> None:
    session = await hf.session("k")
    assert not await cancel_after(STEPS - 1, converse(session, "one"))
