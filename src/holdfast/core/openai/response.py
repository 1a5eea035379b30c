"""The Response object: every key the standard requires, the request echoed, items as bytes."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import Usage
from holdfast.core.model.turn import RUN_AGAIN, Outcome, Run, Turn, TurnStatus
from holdfast.core.openai.encrypted_reasoning import (
    ENCRYPTED_MARK,
    body_without_encrypted,
    shows_encrypted,
)

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]

_DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
_NOT_ECHOED = frozenset({"include", "stream_options", "context_management", "input"})

OUTCOME_STATUS: dict[Outcome, ResponseStatus] = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "interrupted": "incomplete",
}


class RecordedFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a failed run keeps beside its code and message: whoever asks again is told the same."""

    is_providers: bool = False
    status: int | None = None
    provider_type: str | None = None
    param: str | None = None
    retry_at: float | None = None
    """When the provider may be asked again, if it said so."""


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run's result keeps beside the items: everything else a Response object needs."""

    status: ResponseStatus = "completed"
    incomplete_reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    fields: dict[str, msgspec.Raw] = {}
    completed_at: float | None = None
    failure: RecordedFailure | None = None


def status_of(turn: Turn, run: Run | None, turn_status: TurnStatus, step: int) -> ResponseStatus:
    """Return the state of the response that a step of a turn gives, `run` being its last run."""
    if run is not None and run.outcome == "completed":
        return decode_answer(run.result).status if run.result else "completed"
    if turn.outcome is not None:
        return OUTCOME_STATUS[turn.outcome]
    if turn.step == step and turn_status == "queued":
        return "queued"
    if turn_status == "interrupted" and turn.source not in RUN_AGAIN:
        return "incomplete"
    return "in_progress"


ERROR_CODES = frozenset(
    {
        "server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded",
        "insufficient_quota",
    }
)  # fmt: skip
"""Those that an upstream of any make may give and that clients act upon, listed by the API or not:
one that is told of a window compacts, one that is told of a quota stops."""


def error_value(code: str | None, message: str | None) -> dict[str, Any]:
    """Return the error of a failed response; codes that no client knows are not shown."""
    shown = code if code in ERROR_CODES else "server_error"
    return {"code": shown, "message": message or "the turn failed"}


class ResponseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a response at some moment."""

    id: str
    request: TurnRequest
    created_at: float
    status: ResponseStatus
    output: Sequence[bytes] = ()
    answer: RecordedAnswer | None = None
    conversation_id: str | None = None
    error: dict[str, Any] | None = None
    shows_encrypted: bool = False
    """Whether encrypted reasoning is shown although the request did not ask for it."""


_encode = msgspec.json.Encoder().encode
encode_answer = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(RecordedAnswer).decode


def response_value(facts: ResponseFacts) -> dict[str, Any]:
    """Return the Response object; its items and echoed fields are raw bytes inside."""
    answer, request = facts.answer, facts.request
    ended = answer.completed_at if answer is not None and answer.status == "completed" else None
    value: dict[str, Any] = {
        "id": facts.id,
        "object": "response",
        "created_at": int(facts.created_at),
        "completed_at": int(ended) if ended is not None else None,
        "status": facts.status,
        "background": request.is_background,
        "error": facts.error,
        "incomplete_details": _incomplete(answer) if facts.status == "incomplete" else None,
        "model": request.model,
        "output": _shown(facts),
        "previous_response_id": request.previous_response_id,
        "store": request.is_stored,
        "usage": answer.usage if answer else None,
        **_DEFAULTS,
    }
    if request.fields:
        value |= {name: raw for name, raw in request.fields.items() if name not in _NOT_ECHOED}
    if facts.conversation_id is not None:
        value["conversation"] = {"id": facts.conversation_id}
    if answer is not None and answer.fields:
        value.update(answer.fields)
    return value


def _shown(facts: ResponseFacts) -> list[msgspec.Raw]:
    """Return the items of a response; their seals only to whoever asked for them."""
    is_open = facts.shows_encrypted or (
        "include" in facts.request.fields and shows_encrypted(facts.request)
    )
    shown: list[msgspec.Raw] = []
    for body in facts.output:
        is_as_kept = is_open or ENCRYPTED_MARK not in body
        shown.append(msgspec.Raw(body if is_as_kept else body_without_encrypted(body)))
    return shown


def write_response(facts: ResponseFacts) -> bytes:
    """Return the Response object as JSON."""
    return _encode(response_value(facts))


def _incomplete(answer: RecordedAnswer | None) -> dict[str, str]:
    reason = answer.incomplete_reason if answer else None
    return {"reason": reason or "interrupted"}


def usage_value(usage: Usage) -> bytes:
    """Return usage as the Responses API writes it."""
    return _encode(
        {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
    )


def whole_usage(told: Any) -> bytes:
    """Return usage as a server told it, with the details that it left out as none."""
    if isinstance(told, dict):
        told = {**told}
        for name, none in _NO_DETAILS:
            if name not in told or told[name] is None:
                told[name] = none
            elif isinstance(told[name], dict):
                told[name] = {**none, **told[name]}
    return _encode(told)


_NO_DETAILS: tuple[tuple[str, dict[str, int]], ...] = (
    ("input_tokens_details", {"cached_tokens": 0, "cache_write_tokens": 0}),
    ("output_tokens_details", {"reasoning_tokens": 0}),
)
