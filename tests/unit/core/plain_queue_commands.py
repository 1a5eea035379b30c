"""Commands on a busy lane: turns that only wait, ends that only hand the lane over, and others."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.decisions.lane import pack_items
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.schedule import ScheduleClaim
from holdfast.core.model.session import Usage
from holdfast.core.model.turn import Successor, Turn
from holdfast.core.transaction.commands import (
    ImportedPrefix,
    JournalEntry,
    LaneLimits,
    Parent,
    StoredCompletion,
)
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.core.transaction.session_draft import MAX_ENTRY_BYTES, MAX_ENTRY_ITEMS
from tests.unit.core.builders import (
    NOW,
    OTHER_WORKER,
    TURN,
    a_started_turn,
    a_turn,
    held,
    running,
)
from tests.unit.core.plain_commands import (
    APPROVED,
    COUNTED,
    IDLE,
    INSTRUCTION,
    LONG,
    NAMED,
    SAID,
    STATE,
    USAGE,
)


def a_waiting_turn(number: int, *items: NewItem, **fields: Any) -> Turn:
    """Return a turn that waits for its lane at the position of its number."""
    asked = pack_items(items or [message("user", f"question {number}")])
    known: dict[str, Any] = {
        "id": TurnId(f"turn_{number}"), "number": number, "position": number, "input": asked,
        "request": b'{"api":"chat"}',
    }  # fmt: skip
    return a_turn(**(known | fields))


def behind(facts: Facts, *waiting: Turn) -> tuple[Facts, tuple[Turn, ...]]:
    """Return the facts of a lane in which these turns wait, and the turns."""
    if not waiting:
        return facts, ()
    queue = Waiting(len(waiting), waiting[0].position, waiting[-1].position)
    return replace(facts, waiting=queue), waiting


Busy = tuple[Facts, tuple[Turn, ...]]
TWO, THREE = a_waiting_turn(2), a_waiting_turn(3)
LATER = a_started_turn(number=7, position=50)

PLAIN_QUEUED: list[tuple[dict[str, Any], Busy]] = [
    ({}, behind(running())),
    ({}, behind(running(), TWO)),
    ({}, behind(running(), TWO, THREE)),
    ({"items": (NAMED,)}, behind(running(session=LONG), TWO)),
    ({}, behind(running(LATER, session=LONG))),
    ({}, behind(running(session=LONG), a_waiting_turn(7, position=90))),
    ({"source": "background", "request": b'{"api":"chat"}'}, behind(running(), TWO)),
    (
        {"source": "cron", "body_hash": None},
        behind(running(session={"last_user_activity_at": 5.0, "has_failed": True}), TWO),
    ),
    ({"source": "channel"}, behind(running())),
    ({"limits": LaneLimits(max_waiting=2, can_run_again=True)}, behind(running(), TWO)),
    ({"is_compared": False, "body_hash": b"other"}, behind(running(), TWO)),
    ({"session_id": SessionId("ses_1"), "key": None}, behind(running(), TWO)),
]
OTHER_QUEUED: list[tuple[dict[str, Any], Busy]] = [
    (fields, behind(running(session=LONG), TWO))
    for fields in (
        {"again": True},
        {"is_internal": True},
        {"idempotency_key": "once"},
        {"rewind": (1, 2)},
        {"seen_seq": 3},
        {"parent": Parent(1, 0)},
        {"after_turn": 4},
        {"expected_id": SessionId("ses_other")},
        {"same_as": (TURN, 0)},
        {"abandons": TURN},
        {"supersedes": TURN},
        {"brought": ImportedPrefix(TurnId("turn_0"), 1)},
        {"collect_seconds": 2.0},
        {"schedule": ScheduleClaim("sch_1", NOW, NOW, None)},
        {"reset": IDLE},
        {"limits": LaneLimits(full_bytes=10)},
        {"limits": LaneLimits(max_tenant_turns=1)},
        {"limits": LaneLimits(max_waiting=1)},
        {"on_busy": "reject"},
        {"on_busy": "interrupt"},
        {"on_busy": "rollback"},
        {"on_busy": "steer"},
        {"items": ()},
        {"items": (message("user", "one"), message("user", "two"))},
        {"items": (INSTRUCTION,)},
        {"items": (APPROVED,)},
        {"tenant": Tenant("other")},
        {"worker": OTHER_WORKER},
        {"is_compared": False},
        {"retry_count": 1},
    )
] + [
    ({}, behind(running(session={"is_live": False}))),
    ({}, behind(running(session={"deleted_at": NOW - 1}))),
    ({"is_compared": False, "body_hash": None}, behind(running(a_started_turn(body_hash=None)))),
    ({}, behind(held())),
]

NEXT = {"successor": Successor(TurnId("turn_2"), RunId("run_2"))}
AGAIN = {"successor": Successor(TurnId("turn_2"), RunId("run_later"))}
LONG_RUN = LONG | {"turn_count": 9}


def _handed(following: Turn) -> Busy:
    return behind(running(), following, THREE)


PLAIN_HAND_OVERS: list[tuple[dict[str, Any], Busy]] = [
    (NEXT, behind(running(), TWO)),
    (AGAIN, behind(running(), TWO, THREE, a_waiting_turn(4))),
    (AGAIN | {"usage": USAGE, "result": b"{}"}, behind(running(session=COUNTED), TWO)),
    (NEXT | {"items": (), "after_seq": 1}, behind(running(session={"has_failed": True}), TWO)),
    (NEXT | {"items": (NAMED, *SAID), "hold_seconds": 5.0}, behind(running(), TWO)),
    (NEXT | {"shown_records": 3}, behind(running(session=LONG_RUN), TWO)),
    (NEXT | {"journal": JournalEntry(first=0, last=1, body=b"")}, behind(running(), TWO)),
    (NEXT, behind(running(session={"epoch": 2, "version": 5}), TWO)),
    (NEXT, behind(running(a_started_turn(source="channel", merged_into=TurnId("turn_0"))), TWO)),
    (NEXT, _handed(a_waiting_turn(2, NAMED, owner=OTHER_WORKER, accepted_at=NOW))),
    (NEXT, _handed(a_waiting_turn(2, *SAID, message("user", "and"), attempts=2, step=1))),
    (AGAIN, _handed(a_waiting_turn(2, source="background", started_at=NOW - 5, position=-4))),
    (NEXT, _handed(a_waiting_turn(2, error_code="worker_lost", merged_into=TurnId("turn_0")))),
    (NEXT, _handed(a_waiting_turn(2, input=pack_items([])))),
]
OTHER_HAND_OVERS: list[tuple[dict[str, Any], Busy]] = [
    (NEXT | fields, behind(running(), TWO, THREE))
    for fields in (
        {"outcome": "failed"},
        {"outcome": "interrupted"},
        {"partial": SAID},
        {"usage": USAGE, "counted": USAGE},
        {"usage": Usage(-1)},
        {"error_code": "odd"},
        {"error_message": "odd"},
        {"is_retryable": True},
        {"provider_state": STATE},
        {"completion": StoredCompletion("m", b"{}")},
        {"pending_calls": ("call_1",)},
        {"heals": b"[]"},
        {"refused_from": 1},
        {"left_out": (1,)},
        {"history_hash": b"hash"},
        {"after_seq": 0},
        {"again": True},
        {"items": SAID * (MAX_ENTRY_ITEMS + 1)},
        {"successor": None},
        {"successor": Successor(TurnId("turn_3"), RunId("run_3"))},
        {"successor": Successor(TurnId("turn_9"), RunId("run_9"))},
    )
] + [
    (NEXT, busy)
    for busy in (
        behind(running(run_fields={"partial": b"\x90"}), TWO),
        _handed(a_waiting_turn(2, first_seq=1, kept_seq=1, last_seq=1)),
        _handed(a_waiting_turn(2, rewind_after=0, rewind_upto=1)),
        _handed(a_waiting_turn(2, source="channel")),
        _handed(a_waiting_turn(2, INSTRUCTION)),
        _handed(a_waiting_turn(2, message("user", "x" * MAX_ENTRY_BYTES))),
        _handed(a_waiting_turn(2, *SAID * (MAX_ENTRY_ITEMS + 1))),
        _handed(a_waiting_turn(2, input=None)),
    )
]


def named_turn(command_fields: dict[str, Any], waiting: Sequence[Turn]) -> Turn | None:
    """Return the waiting turn that the end of a run names as the next one."""
    named = command_fields.get("successor")
    return next((turn for turn in waiting if named and turn.id == named.turn_id), None)
