"""Batches of external runs: plain ones, and others for every option."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.items import message, write_item
from holdfast.core.transaction.commands import AppendBatch, Appended, LaneLimits
from holdfast.core.transaction.session_draft import MAX_ENTRY_BYTES, MAX_ENTRY_ITEMS
from tests.unit.core.builders import KEY, NOW, SESSION, TENANT, TURN, WORKER, a_session, a_turn
from tests.unit.core.plain_commands import COUNTED, LONG, NAMED, SAID


def last_batch(
    turn: dict[str, Any] | None = None, session: dict[str, Any] | None = None
) -> Appended:
    """Return the result of a batch that wrote the items 2 to 4."""
    written: dict[str, Any] = {
        "input": None, "first_seq": 2, "kept_seq": 4, "last_seq": 4, "outcome": "completed",
        "accepted_at": NOW - 50, "started_at": NOW - 50, "ended_at": NOW - 40, "step": 2,
    }  # fmt: skip
    known: dict[str, Any] = {"head_seq": 4, "version": 6, "event_no": 6, "turn_count": 2}
    return Appended(a_session(**(known | (session or {}))), a_turn(**(written | (turn or {}))))


def a_batch(known: Appended | None, **fields: Any) -> AppendBatch:
    """Return the batch that follows a known one."""
    batch = AppendBatch(
        tenant=TENANT, turn_id=TURN, ordinal=3, worker=WORKER, candidate_id=SessionId("ses_new"),
        key=KEY, items=(message("user", "hello"),), known=known,
    )  # fmt: skip
    return replace(batch, **fields)


PLAIN_BATCHES: list[tuple[dict[str, Any], Appended]] = [
    ({}, last_batch()),
    ({"ordinal": 9, "items": (*SAID, NAMED)}, last_batch()),
    ({"items": SAID * MAX_ENTRY_ITEMS}, last_batch(session=COUNTED)),
    ({"source": "background"}, last_batch(session={"last_user_activity_at": 5.0})),
    ({"source": "channel"}, last_batch({"source": "channel", "started_at": NOW - 45})),
    ({"session_id": SESSION, "key": None}, last_batch(session={"is_live": False})),
    ({"spare_turn_id": TurnId("turn_2"), "body_hash": b"other"}, last_batch()),
    ({}, last_batch({"last_seq": 41, "kept_seq": 41, "number": 7}, LONG)),
    ({}, last_batch({"first_seq": 5})),
    ({}, last_batch({"merged_into": TurnId("turn_0"), "input": b"\x90", "rewind_after": 1})),
    ({}, last_batch({"outcome": "failed", "error_code": "odd", "error_message": "odd"})),
    ({"items": (write_item({"type": "function_call", "call_id": "c", "name": "f"}),)},
     last_batch(session={"has_failed": True, "metadata": b'{"a":1}'})),
]  # fmt: skip
"""Batches that only continue the last one."""
OTHER_BATCHES: list[tuple[dict[str, Any], Appended | None]] = [
    ({}, None),
    ({}, replace(last_batch(), is_repeat=True)),
    ({"again": True}, last_batch()),
    ({"idempotency_key": "once"}, last_batch()),
    ({"replaces_upto": 4}, last_batch()),
    ({"expected_id": SESSION}, last_batch()),
    ({"limits": LaneLimits(full_bytes=1)}, last_batch()),
    ({"limits": LaneLimits(max_tenant_turns=1)}, last_batch()),
    ({"tenant": Tenant("other")}, last_batch()),
    ({"ordinal": 2}, last_batch()),
    ({"items": ()}, last_batch()),
    ({"items": SAID * (MAX_ENTRY_ITEMS + 1)}, last_batch()),
    ({"items": (message("user", "x" * MAX_ENTRY_BYTES),)}, last_batch()),
    ({}, last_batch(session={"deleted_at": NOW - 1})),
    ({}, last_batch(session={"tenant": Tenant("other")})),
    ({}, last_batch(session={"head_seq": 5})),
    ({}, last_batch({"tenant": Tenant("other")})),
    ({}, last_batch({"outcome": None})),
    ({}, last_batch(session={"active_turn_id": TURN, "active_run_id": "run_1", "owner": WORKER})),
]
"""Batches about which more has to be decided."""
