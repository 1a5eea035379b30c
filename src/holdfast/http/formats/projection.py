"""The request that a model was sent, as JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.session import ProviderState
from holdfast.core.model.turn import Turn
from holdfast.engine.turns.sent_requests import (
    Attempt,
    Before,
    ItemChange,
    RebuiltRequest,
    RequestItem,
    difference,
)

MAX_CHANGES = 1000
"""The most changes that are listed; the counts include all of them."""


def projection_value(
    turn: Turn,
    rebuilt: RebuiltRequest,
    before: Before | None,
    *,
    attempts: Sequence[Attempt],
    states: Sequence[ProviderState],
    page: slice,
    wire: bytes | None = None,
) -> dict[str, Any]:
    """Return a projection object; `page` selects the items of the request to list.

    `wire` is the body that the upstream's adapter writes for the request.
    """
    attempt, request = rebuilt.attempt, rebuilt.request
    sent = attempt.sent
    return {
        "object": "turn.projection",
        "turn_id": turn.id,
        "session_id": turn.session_id,
        "number": turn.number,
        "step": attempt.run.step,
        "attempt": attempts.index(attempt) + 1,
        "run_id": attempt.run.id,
        "model": attempt.model,
        "requested_model": request.model,
        "upstream": sent.upstream if sent is not None else None,
        "proof": {
            "recorded": sent.digest.hex() if sent is not None else None,
            "rebuilt": rebuilt.digest.hex(),
            "is_same": rebuilt.is_proven,
            "covers": "model_call",
        },
        "request": {
            "model": attempt.model,
            **request.fields,
            **request.chat_fields,
            "input": [msgspec.Raw(item.body) for item in rebuilt.items[page]],
        },
        "wire": msgspec.Raw(wire) if wire is not None else None,
        "assumed_window": rebuilt.assumed_window,
        "input_count": len(rebuilt.items),
        "input_offset": page.start,
        "items": [_item_value(item) for item in rebuilt.items[page]],
        "difference": _difference_value(before, rebuilt),
        "provider_state": _state_value(rebuilt, attempts, states),
        "attempts": [attempt_value(one, attempts) for one in attempts],
    }


def _item_value(item: RequestItem) -> dict[str, Any]:
    return {"sequence": item.seq, "turn_number": item.turn_number, "origin": item.origin}


def _difference_value(before: Before | None, rebuilt: RebuiltRequest) -> dict[str, Any]:
    changes = difference(before.rebuilt if before is not None else None, rebuilt)
    counts = Counter(change.change for change in changes)
    sent = rebuilt.attempt.sent
    return {
        "previous_turn_id": before.turn.id if before is not None else None,
        "previous_step": before.rebuilt.attempt.run.step if before is not None else None,
        "counts": {
            **{name: counts[name] for name in sorted(counts)},
            "unchanged": len(rebuilt.items) - _count_new(changes),
        },
        "strips_encrypted_content": sent is not None and sent.strips_opaque,
        "is_plain": sent is not None and sent.is_plain,
        "changes": [_change_value(change) for change in changes[-MAX_CHANGES:]],
    }


def _count_new(changes: Sequence[ItemChange]) -> int:
    """Return how many items of the request are new or changed since the previous one."""
    removed = ("compacted", "hidden", "left_out")
    return sum(change.change not in removed for change in changes)


def _change_value(change: ItemChange) -> dict[str, Any]:
    record = change.record
    cause = None
    if record is not None:
        cause = {
            "record": record.no,
            "kind": record.kind,
            "session_id": record.session_id,
            "turn_id": record.turn_id,
            "created_at": int(record.created_at),
        }
    return {"change": change.change, "sequence": change.seq, "cause": cause}


def _state_value(
    rebuilt: RebuiltRequest, attempts: Sequence[Attempt], states: Sequence[ProviderState]
) -> dict[str, Any]:
    sent = rebuilt.attempt.sent
    covers = sent.covers_seq if sent is not None else None
    is_used = covers is not None
    same_step = [attempt for attempt in attempts if attempt.run.step == rebuilt.attempt.run.step]
    was_used = [
        attempt
        for attempt in same_step
        if attempt.sent is not None and attempt.sent.covers_seq is not None
    ]
    return {
        "is_used": is_used,
        "covers_sequence": covers,
        "sent_items": rebuilt.new_items,
        "was_dropped": bool(was_used) and not is_used,
        "stored_now": [
            {"provider": state.provider, "model": state.model, "covers_sequence": state.covers_seq}
            for state in states
        ],
    }


def attempt_value(attempt: Attempt, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return one request to a provider and its outcome."""
    run, heal, sent = attempt.run, attempt.heal, attempt.sent
    value: dict[str, Any] = {
        "number": attempts.index(attempt) + 1,
        "run_id": run.id,
        "step": run.step,
        "model": attempt.model,
        "upstream": (heal.upstream if heal else None) or (sent.upstream if sent else None),
        "digest": sent.digest.hex() if sent is not None else None,
        "used_provider_state": sent is not None and sent.covers_seq is not None,
    }
    if attempt.is_tool_call:
        return {**value, "outcome": "completed", "error": None, "action": None}
    if heal is None:
        error = None
        if run.error_code is not None:
            error = {"code": run.error_code, "message": run.error_message}
        return {**value, "outcome": run.outcome or "running", "error": error, "action": None}
    return {
        **value,
        "outcome": "failed",
        "error": {
            "code": heal.code,
            "message": heal.message,
            "status": heal.status,
            "failure_class": heal.failure_class,
        },
        "action": {
            "kind": heal.action,
            "pause_seconds": heal.pause_seconds,
            "next_model": heal.next_model,
            "items": list(heal.items),
        },
    }
