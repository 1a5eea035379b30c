"""Runs that were parked for a decision: which one a `RunState` is, and where it stands."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from agents import RunState

from holdfast.core.items import StoredItem

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode
_NOT_ITS_IDENTITY = frozenset(
    {"$schemaVersion", "context", "sandbox", "tool_use_tracker", "pending_session_write"}
)
"""Decisions and what a copy may be given anew; all else says how far the run had come."""


def identity_of(state: RunState[Any]) -> str:
    """Return a name that all copies of one parked run share, whatever was decided on them."""
    written = state.to_json(context_serializer=lambda _: {})
    kept = {name: value for name, value in written.items() if name not in _NOT_ITS_IDENTITY}
    return f"agents_sdk:resumed:{hashlib.blake2b(_encode(kept), digest_size=20).hexdigest()}"


def find_parked(items: Sequence[StoredItem], state: RunState[Any]) -> tuple[int, int] | None:
    """Return the block that ends with the calls which the run waits to make, if it is there."""
    waiting = {_call_id(item.raw_item) for item in state.get_interruptions()}
    answered: set[str] = set()
    for item in reversed(items):
        if item.call_id is None or item.call_id not in waiting:
            continue
        if item.kind.endswith("_output"):
            answered.add(item.call_id)
        elif item.call_id in answered:
            answered.discard(item.call_id)
        else:
            block = [one.seq for one in items if one.turn_number == item.turn_number]
            return (block[0], block[-1])
    return None


def _call_id(raw: Any) -> str | None:
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return found if isinstance(found, str) else None
