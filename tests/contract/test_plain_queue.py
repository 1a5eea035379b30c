"""Turns on a busy lane: written in one step or in many, every store has the same afterwards."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from holdfast.core.model.turn import Successor
from holdfast.core.transaction.commands import Accept, Finish, LaneLimits, Started
from holdfast.ports.store import ItemQuery
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient

QUESTIONS = ("two", "three", "four", "five")


async def _pass_the_lane_on(caller: StoreClient, key: str) -> list[str]:
    """Let turns wait in a lane and hand it from one to the next; return what was answered."""
    await caller.enlist()
    limits = LaneLimits(can_run_again=True)
    started = await caller.start("one", key=key, limits=limits)
    waiting = [await caller.wait(text, key=key, limits=limits) for text in QUESTIONS[:3]]
    answers: list[str] = []
    for queued in waiting:
        answers.append(f"answer {started.turn.number}")
        successor = Successor(queued.turn.id, caller.arrival(key=key).run_id)
        ended = await caller.finish(started, answers[-1], successor=successor)
        assert ended.successor is not None
        assert ended.successor.turn.id == queued.turn.id
        started = ended.successor
    # One commit lets a turn wait and ends the one before it.
    behind, _ = await asyncio.gather(
        caller.wait(QUESTIONS[3], key=key, limits=limits), caller.finish(started, "last")
    )
    claimed = await caller.claim(behind.turn)
    assert isinstance(claimed, Started)
    await caller.finish(claimed, "end")
    return [*answers, "last", "end"]


async def _written(caller: StoreClient, key: str) -> bytes:
    """Return everything that the store has of a session."""
    read = caller.read
    view = await read.session(caller.tenant, key=key)  # type: ignore[arg-type]  # any text is one
    assert view is not None
    session = view.session
    turns = await read.turns(session.id, limit=100)
    found: dict[str, Any] = {
        "session": session,
        "turns": turns,
        "runs": [await read.runs(one.turn.id) for one in turns],
        "items": await read.items(session, ItemQuery(limit=None)),
        "context": list(await read.context(session)),
        "events": await read.events(session.id, after=0, limit=1000),
    }
    written = msgspec.json.encode(found)
    # The ids of items are made from that of their session, and end with their place.
    return re.sub(rb'"msg_[0-9a-f]+([0-9a-f]{6})"', rb'"msg_\1"', written)


async def test_a_lane_that_is_handed_on_is_written_as_in_the_general_path(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, general = StoreClient(store, "d"), StoreClient(store, "g")
    answers = await _pass_the_lane_on(direct, "kd")
    for kind in (Accept, Finish):
        monkeypatch.setitem(PLANNERS, kind, decide_from_cache)
    assert await _pass_the_lane_on(general, "kg") == answers
    ours, theirs = await _written(direct, "kd"), await _written(general, "kg")
    assert b'"msg_00000a"' in ours
    assert ours == _renamed(theirs)
    view = await direct.read.session(direct.tenant, key="kd")  # type: ignore[arg-type]  # as above
    assert view is not None
    asked = ["one", *QUESTIONS]
    said = [text for pair in zip(asked, answers, strict=True) for text in pair]
    assert await direct.texts(view.session) == said


def _renamed(written: bytes) -> bytes:
    """Return what was written with the names that the first caller used."""
    for name in (b"ses_", b"turn_", b"run_", b"wrk_"):
        written = written.replace(name + b"g", name + b"d")
    return written.replace(b'"kg"', b'"kd"')
