"""Commands that begin a session: plain ones, and others for every option."""

from typing import Any

from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.items import message, write_item
from holdfast.core.transaction.commands import ImportedPrefix, LaneLimits, Parent
from tests.unit.core.builders import TURN
from tests.unit.core.plain_commands import APPROVED, IDLE, INSTRUCTION, NAMED

OUTPUT = write_item({"type": "function_call_output", "call_id": "call_1", "output": "42"})

PLAIN_FIRSTS: list[dict[str, Any]] = [
    {},
    {"items": (NAMED,)},
    {"items": (OUTPUT,)},
    {"request": b'{"api":"chat"}', "body_hash": None},
    {"source": "background"},
    {"source": "cron"},
    {"source": "channel"},
    {"source": "system"},
    {"on_busy": "reject"},
    {"on_busy": "interrupt"},
    {"on_busy": "rollback"},
    {"is_compared": False},
    {"retry_count": 2},
    {"reset": IDLE},
    {"limits": LaneLimits(can_run_again=True, max_waiting=1)},
    {"candidate_id": SessionId("ses_0198c7d02f5a7c3e9a41d2b6e8f01234")},
    {"seen_seq": 0},
]
OTHER_FIRSTS: list[dict[str, Any]] = [
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
    {"limits": LaneLimits(full_bytes=10)},
    {"limits": LaneLimits(max_tenant_turns=1)},
    {"on_busy": "steer"},
    {"items": ()},
    {"items": (message("user", "one"), message("user", "two"))},
    {"items": (INSTRUCTION,)},
    {"items": (APPROVED,)},
    {"session_id": SessionId("ses_gone"), "key": None},
]
