"""Runs that were parked for a decision: which one a `RunState` is, and what it waits for."""

import hashlib
from typing import Any

import msgspec
from agents import RunState

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode
_NOT_ITS_IDENTITY = frozenset(
    {"$schemaVersion", "context", "sandbox", "tool_use_tracker", "pending_session_write"}
)
"""Decisions and what a copy may be given anew; all else says how far the run had come."""


def identity_of(state: RunState[Any], session_id: str) -> str:
    """Return a name that all copies of a session's parked run share, whatever was decided on them.

    A local server numbers its calls anew in every answer: equal runs of other sessions are others.
    """
    written = state.to_json(context_serializer=lambda _: {})
    kept = {name: value for name, value in written.items() if name not in _NOT_ITS_IDENTITY}
    digest = hashlib.blake2b(_encode((session_id, kept)), digest_size=20)
    return f"agents_sdk:resumed:{digest.hexdigest()}"


def waits_for(state: RunState[Any]) -> tuple[str, ...]:
    """Return the ids of the calls that wait for a decision."""
    found = [_call_id(item.raw_item) for item in state.get_interruptions()]
    return tuple(call_id for call_id in found if call_id is not None)


def _call_id(raw: Any) -> str | None:
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return found if isinstance(found, str) else None
