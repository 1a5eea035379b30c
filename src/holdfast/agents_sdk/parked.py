"""Runs that were parked for a decision: which one a `RunState` is, and what it waits for."""

import hashlib
import secrets
from dataclasses import replace
from typing import Any

import msgspec
from agents import RunResult, RunResultStreaming, RunState
from agents.tracing.traces import TraceState

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode
MARK = "holdfast_run"
_NOT_ITS_IDENTITY = frozenset(
    {"$schemaVersion", "context", "sandbox", "tool_use_tracker", "pending_session_write"}
)
"""Decisions and what a copy may be given anew; all else says how far the run had come."""


def mark(result: RunResult | RunResultStreaming) -> None:
    """Give a run that is parked a mark of its own, which its `RunState` carries in every copy.

    Local servers number their calls anew in every answer: without it two runs may be equal.
    """
    if not result.interruptions:
        return
    trace = (
        result._trace_state or TraceState.from_trace(getattr(result, "trace", None)) or TraceState()
    )
    result._trace_state = replace(trace, extra={**trace.extra, MARK: secrets.token_hex(16)})


def identity_of(state: RunState[Any], session_id: str) -> str:
    """Return a name that all copies of a parked run share, whatever was decided on them.

    Marked, or of a trace, the run is one wherever it is resumed. One that has neither may have its
    equals in other sessions, and is told from them by its own.
    """
    written = state.to_json(context_serializer=lambda _: {})
    kept = {name: value for name, value in written.items() if name not in _NOT_ITS_IDENTITY}
    known = kept if kept.get("trace") else (session_id, kept)
    digest = hashlib.blake2b(_encode(known), digest_size=20)
    return f"agents_sdk:resumed:{digest.hexdigest()}"


def waits_for(state: RunState[Any]) -> tuple[str, ...]:
    """Return the ids of the calls that wait for a decision."""
    found = [_call_id(item.raw_item) for item in state.get_interruptions()]
    return tuple(call_id for call_id in found if call_id is not None)


def _call_id(raw: Any) -> str | None:
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return found if isinstance(found, str) else None
