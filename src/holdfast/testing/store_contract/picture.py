"""Everything that can be read of a session, to see what a command changed and what it did not."""

from typing import Any

from holdfast.core.ids import SessionId
from holdfast.core.model.session import Session
from holdfast.ports.store import ItemQuery
from holdfast.testing.caller import Caller

MANY = 1000


async def picture(caller: Caller, session_id: str) -> dict[str, Any]:
    """Return all there is to read of one session; an erased one shows nothing."""
    read = caller.read
    view = await read.session(caller.tenant, session_id=SessionId(session_id))
    if view is None:
        return {"session": None}
    session: Session = view.session
    turns = await read.turns(session.id, limit=MANY)
    return {
        "session": session,
        "status": view.status,
        "queued_turns": view.queued_turns,
        "log": await read.items(session, ItemQuery(view="log")),
        "visible": await read.items(session, ItemQuery()),
        "hidden": await read.hidden(session),
        "records": await read.records(session),
        "turns": turns,
        "runs": [run for turn in turns for run in await read.runs(turn.turn.id)],
        "provider_state": await read.provider_state(session.id),
        "events": await read.events(session.id, after=0, limit=MANY),
    }


def without_runs(shown: dict[str, Any]) -> dict[str, Any]:
    """Return a picture without the runs: all that a fenced run may not touch."""
    return {name: value for name, value in shown.items() if name != "runs"}


def assert_sound(shown: dict[str, Any]) -> None:
    """Check what holds of every session at every moment: numbers without gaps, whole blocks."""
    session = shown["session"]
    if session is None:
        return
    assert [item.seq for item in shown["log"]] == list(range(1, session.head_seq + 1))
    assert len(shown["visible"]) == session.item_count
    assert [view.turn.number for view in shown["turns"]] == list(range(1, session.turn_count + 1))
    assert [event.no for event in shown["events"]] == list(range(1, session.event_no + 1))
    assert [record.no for record in shown["records"]] == list(range(1, session.record_no + 1))
    blocks = [item.turn_number for item in shown["visible"] if item.session_id == session.id]
    seen: list[int] = []
    for number in blocks:
        if not seen or seen[-1] != number:
            assert number not in seen, "the items of two turns interleave"
            seen.append(number)
    epochs = [run.epoch for run in shown["runs"]]
    assert len(epochs) == len(set(epochs))
