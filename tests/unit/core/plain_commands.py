"""Commands that start and end turns: plain ones, and others for every option."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.items import message, write_item
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.model.session import ProviderState, Usage
from holdfast.core.model.turn import Successor
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import (
    Finish,
    ImportedPrefix,
    JournalEntry,
    LaneLimits,
    Parent,
    StoredCompletion,
)
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import MAX_ENTRY_BYTES, MAX_ENTRY_ITEMS
from tests.unit.core.builders import (
    NOW,
    SESSION,
    TURN,
    a_fence,
    a_started_turn,
    held,
    idle,
    running,
    waiting,
)

NAMED = write_item({"type": "message", "id": "msg_1", "role": "user", "content": "hello"})
APPROVED = replace(message("user", "yes"), kind=APPROVAL)
INSTRUCTION = replace(message("system", "be brief"), is_instruction=True)
IDLE = ResetPolicy(mode="idle")
LONG = {"turn_count": 7, "head_seq": 41, "event_no": 30, "version": 29, "epoch": 28, "record_no": 3}
USAGE = Usage(10, 2, 5, 1)
SAID = (message("assistant", "hi"),)


def same(left: Decision[Any], right: Decision[Any]) -> bool:
    """Whether two decisions have the same changes and the same outcome."""
    if isinstance(left.outcome, HoldfastError):
        return type(left.outcome) is type(right.outcome) and left.changes == right.changes
    return left == right


PLAIN_STARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"session": LONG}),
    ({"items": (NAMED,)}, {"session": LONG}),
    ({"source": "background", "request": b'{"api":"chat"}'}, {}),
    ({"source": "cron", "body_hash": None}, {"session": {"last_user_activity_at": 5.0}}),
    ({"on_busy": "reject"}, {}),
    ({"on_busy": "interrupt"}, {}),
    ({"is_compared": False}, {}),
    ({"seen_seq": 41}, {"session": LONG}),
]
CHAINED_STARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"parent": Parent(41, 3), "session_id": SESSION}, {"session": LONG}),
    ({"parent": Parent(41, 3), "session_id": SESSION, "key": None}, {"session": LONG}),
]
"""Plain starts behind a parent response, which the general path decides only after reads."""
OTHER_STARTS: list[tuple[dict[str, Any], Facts]] = [
    ({"again": True}, idle()),
    ({"is_internal": True}, idle()),
    ({"idempotency_key": "once"}, idle()),
    ({"rewind": (1, 2)}, idle(session=LONG)),
    ({"seen_seq": 3}, idle()),
    ({"seen_seq": 40}, idle(session=LONG)),
    ({"parent": Parent(1, 0)}, idle(session=LONG)),
    ({"parent": Parent(40, 3), "session_id": SESSION}, idle(session=LONG)),
    ({"parent": Parent(41, 2), "session_id": SESSION}, idle(session=LONG)),
    ({"parent": Parent(41, 2), "session_id": SESSION}, idle(session=LONG, is_view_changed=True)),
    ({"after_turn": 4}, idle()),
    ({"expected_id": SessionId("ses_other")}, idle()),
    ({"same_as": (TURN, 0)}, idle()),
    ({"abandons": TURN}, held()),
    ({"supersedes": TURN}, idle()),
    ({"brought": ImportedPrefix(TurnId("turn_0"), 1)}, idle()),
    ({"collect_seconds": 2.0}, idle()),
    ({"reset": IDLE}, idle()),
    ({"limits": LaneLimits(full_bytes=10)}, idle()),
    ({"limits": LaneLimits(max_tenant_turns=1)}, idle(tenant_turns=1)),
    ({"on_busy": "steer"}, idle()),
    ({"items": ()}, idle()),
    ({"items": (message("user", "one"), message("user", "two"))}, idle()),
    ({"items": (INSTRUCTION,)}, idle()),
    ({"items": (APPROVED,)}, idle()),
    ({"tenant": Tenant("other")}, idle()),
    ({}, idle(session={"is_live": False})),
    ({}, idle(session={"deleted_at": NOW - 1})),
    ({"is_compared": False}, idle(session={"has_failed": True})),
    ({}, idle(waiting=waiting(4))),
    ({}, held()),
    ({}, Facts(now=NOW)),
]


def an_end(facts: Facts, **fields: Any) -> Finish:
    ending = Finish(fence=a_fence(facts), outcome="completed", items=SAID)
    return replace(ending, **fields)


COUNTED = {"input_tokens": 100, "cached_tokens": 7, "output_tokens": 50, "reasoning_tokens": 3}
PLAIN_ENDS: list[tuple[dict[str, Any], Facts]] = [
    ({}, running()),
    ({"usage": USAGE, "result": b"{}"}, running(session=COUNTED | {"event_no": 9})),
    ({"usage": USAGE}, running(run_fields={"input_tokens": 1, "heals": b"[]"})),
    ({"items": (), "after_seq": 1}, running(session={"record_no": 4})),
    ({"items": (NAMED, *SAID), "after_seq": 1, "hold_seconds": 5.0}, running()),
    ({"successor": Successor(TurnId("turn_2"), RunId("run_2"))}, running()),
    ({"shown_records": 0}, running(session={"record_no": 2})),
    ({"journal": JournalEntry(first=0, last=1, body=b"")}, running()),
    ({"journal": JournalEntry(first=2, last=3, body=b"x"), "usage": USAGE}, running()),
    ({}, running(a_started_turn(source="channel", error_code="worker_lost", is_retryable=True))),
]
STATE = ProviderState("p", "a", "m", b"resp_1", 0)
OTHER_ENDS: list[tuple[dict[str, Any], Facts]] = [
    ({"outcome": "failed"}, running()),
    ({"outcome": "interrupted"}, running()),
    ({"partial": SAID}, running()),
    ({"usage": USAGE, "counted": USAGE}, running()),
    ({"usage": Usage(-1)}, running()),
    ({"error_code": "odd"}, running()),
    ({"error_message": "odd"}, running()),
    ({"is_retryable": True}, running()),
    ({"provider_state": STATE}, running()),
    ({"completion": StoredCompletion("m", b"{}")}, running()),
    ({"pending_calls": ("call_1",)}, running()),
    ({"heals": b"[]"}, running()),
    ({"refused_from": 1}, running()),
    ({"left_out": (1,)}, running()),
    ({"history_hash": b"hash"}, running()),
    ({"after_seq": 0}, running()),
    ({"items": SAID * (MAX_ENTRY_ITEMS + 1)}, running()),
    ({"items": (message("assistant", "x" * MAX_ENTRY_BYTES),)}, running()),
    ({}, running(waiting=waiting(4))),
    ({}, running(run_fields={"partial": b"\x90"})),
]
