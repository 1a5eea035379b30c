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
_ATTRIBUTE = "_holdfast_run"
_ITS_IDENTITY = ("trace", "original_input", "model_responses", "conversation_id")
"""What a run was asked and what its models said to it: no resumption changes it in a state."""

Result = RunResult | RunResultStreaming


class Identity(msgspec.Struct, frozen=True):
    """What all copies of a parked run share, whatever was decided on them."""

    mark: str
    is_own: bool
    """No other run can have it, however equal."""

    @property
    def name(self) -> str:
        """The run that resumes it, of which there is one."""
        return f"agents_sdk:resumed:{self.mark}"


def new_mark() -> str:
    """Return a mark for a run, should it be parked.

    Local servers number their calls anew in every answer: without it two runs may be equal.
    """
    return secrets.token_hex(16)


class _Parked(RunResult):
    def to_state(self) -> RunState[Any]:
        return _marked(super().to_state(), self)


class _Streamed(RunResultStreaming):
    def to_state(self) -> RunState[Any]:
        return _marked(super().to_state(), self)


def mark(result: Result, own: str) -> None:
    """Have every `RunState` that is ever taken from a result carry the run's mark.

    The SDK sets a result's trace anew while it streams, and a state's when it is resumed; so the
    mark is put on each state as it is taken.
    """
    setattr(result, _ATTRIBUTE, own)
    result.__class__ = _Streamed if isinstance(result, RunResultStreaming) else _Parked


def _marked(state: RunState[Any], result: Result) -> RunState[Any]:
    put_mark(state, getattr(result, _ATTRIBUTE))
    return state


def put_mark(state: RunState[Any], own: str) -> None:
    """Let a state be a copy of the run of that mark, here and wherever it is sent."""
    setattr(state, _ATTRIBUTE, own)
    trace = state._trace_state or TraceState()
    state._trace_state = replace(trace, extra={**trace.extra, MARK: own})


def mark_of(state: RunState[Any]) -> str | None:
    """Return the mark of the run that a state is a copy of, if it was given one."""
    found = getattr(state, _ATTRIBUTE, None)
    if found is None and state._trace_state is not None:
        found = state._trace_state.extra.get(MARK)
    return found if isinstance(found, str) else None


def identity_of(state: RunState[Any], session_id: str) -> Identity:
    """Return who a parked run is.

    Marked, or of a trace, it is one wherever it is resumed. One that has neither may have its
    equals in other sessions, and is told from them by its own.
    """
    own = mark_of(state)
    if own is not None:
        return Identity(own, is_own=True)
    written = state.to_json(context_serializer=lambda _: {})
    kept = {name: written.get(name) for name in _ITS_IDENTITY}
    known = kept if kept["trace"] else (session_id, kept)
    digest = hashlib.blake2b(_encode(known), digest_size=20)
    return Identity(digest.hexdigest(), is_own=False)


def waits_for(state: RunState[Any]) -> tuple[str, ...]:
    """Return the ids of the calls that wait for a decision."""
    found = [_call_id(item.raw_item) for item in state.get_interruptions()]
    return tuple(call_id for call_id in found if call_id is not None)


def _call_id(raw: Any) -> str | None:
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return found if isinstance(found, str) else None
