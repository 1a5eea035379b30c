"""Runs that wait for an approval: which run a `RunState` belongs to, and its pending calls."""

import hashlib
import secrets
from dataclasses import replace
from typing import Any

import msgspec
from agents import RunResult, RunResultStreaming, RunState
from agents.tracing.traces import TraceState

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode
TAG_FIELD = "holdfast_run"
_ATTRIBUTE = "_holdfast_run"
_IDENTITY_FIELDS = ("trace", "original_input", "model_responses", "conversation_id")
"""Fields of a serialized state that resuming it does not change."""

Result = RunResult | RunResultStreaming


class RunIdentity(msgspec.Struct, frozen=True):
    """The identity that all copies of an interrupted run share, whatever was decided on them."""

    tag: str
    is_unique: bool
    """Whether no other run can have this tag, however similar it is."""

    @property
    def run_id(self) -> str:
        """Id of the run that resumes it; there is at most one."""
        return f"agents_sdk:resumed:{self.tag}"


def new_tag() -> str:
    """Return a tag for a run that may be interrupted.

    Local servers number their calls from zero in every answer, so two runs may look equal.
    """
    return secrets.token_hex(16)


class _TaggedResult(RunResult):
    def to_state(self) -> RunState[Any]:
        return _tagged(super().to_state(), self)


class _TaggedStream(RunResultStreaming):
    def to_state(self) -> RunState[Any]:
        return _tagged(super().to_state(), self)


def tag_run_state(result: Result, tag: str) -> None:
    """Make every `RunState` taken from `result` carry the run's tag.

    The SDK replaces a result's trace while it streams, and a state's when it is resumed, so the
    tag is set on each state as it is taken.
    """
    setattr(result, _ATTRIBUTE, tag)
    result.__class__ = _TaggedStream if isinstance(result, RunResultStreaming) else _TaggedResult


def _tagged(state: RunState[Any], result: Result) -> RunState[Any]:
    set_tag(state, getattr(result, _ATTRIBUTE))
    return state


def set_tag(state: RunState[Any], tag: str) -> None:
    """Tag a state as a copy of one run; the tag survives serialization."""
    setattr(state, _ATTRIBUTE, tag)
    trace = state._trace_state or TraceState()
    state._trace_state = replace(trace, extra={**trace.extra, TAG_FIELD: tag})


def read_tag(state: RunState[Any]) -> str | None:
    """Return the tag of a state, if it has one."""
    tag = getattr(state, _ATTRIBUTE, None)
    if tag is None and state._trace_state is not None:
        tag = state._trace_state.extra.get(TAG_FIELD)
    return tag if isinstance(tag, str) else None


def identify(state: RunState[Any], session_id: str) -> RunIdentity:
    """Return the identity of an interrupted run.

    A tagged or traced run keeps its identity wherever it is resumed. A run with neither may have
    equals in other sessions, so the session's id becomes part of its identity.
    """
    tag = read_tag(state)
    if tag is not None:
        return RunIdentity(tag, is_unique=True)
    serialized = state.to_json(context_serializer=lambda _: {})
    fields = {name: serialized.get(name) for name in _IDENTITY_FIELDS}
    material = fields if fields["trace"] else (session_id, fields)
    digest = hashlib.blake2b(_encode(material), digest_size=20)
    return RunIdentity(digest.hexdigest(), is_unique=False)


def pending_call_ids(state: RunState[Any]) -> tuple[str, ...]:
    """Return the ids of the calls that wait for a decision."""
    call_ids = [_call_id(item.raw_item) for item in state.get_interruptions()]
    return tuple(call_id for call_id in call_ids if call_id is not None)


def _call_id(raw: Any) -> str | None:
    call_id = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return call_id if isinstance(call_id, str) else None
