"""The Response object of the OpenAI API, built from a request and its recorded answer."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.core.model.request import SentRequest, TurnRequest
from holdfast.core.model.session import Usage
from holdfast.core.model.turn import RUN_AGAIN, Outcome, Run, Turn, TurnStatus
from holdfast.core.openai.echoed_fields import DEFAULTS, echoed_fields

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]

OUTCOME_STATUS: dict[Outcome, ResponseStatus] = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "interrupted": "incomplete",
}


class RecordedFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a failure needs besides code and message, so that a repeat gets the same error."""

    is_providers: bool = False
    status: int | None = None
    provider_type: str | None = None
    param: str | None = None
    retry_at: float | None = None
    """When the provider may be called again, if known."""


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of an answer besides its items: everything else that a Response needs."""

    status: ResponseStatus = "completed"
    incomplete_reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    fields: dict[str, msgspec.Raw] = {}
    completed_at: float | None = None
    failure: RecordedFailure | None = None
    sent: SentRequest | None = None
    """The request that was answered, or whose failure ended the run."""
    earlier: tuple[SentRequest, ...] = ()
    """The requests before it in the same run, whose answers were calls of gateway tools."""


def status_of(turn: Turn, run: Run | None, turn_status: TurnStatus, step: int) -> ResponseStatus:
    """Return the status of a turn's response; `run` is the last run of the step."""
    if run is not None and run.outcome == "completed":
        return decode_answer(run.result).status if run.result else "completed"
    if turn.outcome is not None:
        return OUTCOME_STATUS[turn.outcome]
    if turn.step == step and turn_status == "queued":
        return "queued"
    if turn_status == "interrupted" and turn.source not in RUN_AGAIN:
        return "incomplete"
    return "in_progress"


def error_value(code: str | None, message: str | None) -> dict[str, Any]:
    """Return the error of a failed response, with the code that an unstreamed answer would have."""
    if code is None or code == HoldfastError.code:
        code = "server_error"
    return {"code": code, "message": message or "the turn failed"}


def error_of(error: HoldfastError) -> dict[str, Any]:
    """Return the value of an error that ends a stream."""
    provider_code = error.provider_code if isinstance(error, ProviderFailure) else None
    return error_value(provider_code or error.code, error.message)


class ResponseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a response."""

    id: str
    request: TurnRequest
    created_at: float
    status: ResponseStatus
    output: Sequence[bytes] = ()
    text: str | None = None
    """The text of an output that is one plain message, if it is known."""
    answer: RecordedAnswer | None = None
    conversation_id: str | None = None
    error: dict[str, Any] | None = None
    shows_encrypted: bool = False
    """Whether encrypted reasoning is shown although the request did not ask for it."""


def deleted_end(facts: ResponseFacts) -> ResponseFacts:
    """Return the end of a response whose record was deleted before it ended."""
    return replace(facts, status="cancelled", output=(), text=None, answer=None, error=None)


def cut_off_end(facts: ResponseFacts) -> ResponseFacts:
    """Return the end of a stream that has no recorded end, or none that fits what was shown."""
    error = error_value("server_error", "the answer was cut off; send the request again")
    return replace(facts, status="failed", output=(), text=None, answer=None, error=error)


_encode = msgspec.json.Encoder().encode
encode_answer = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(RecordedAnswer).decode
_AS_COUNTED = msgspec.Raw(b"true")
"""Stands for usage that equals the token counts of the run."""


def pack_answer(answer: RecordedAnswer, usage: Usage | None) -> bytes:
    """Serialize an answer for storage with its run, without usage that the run's counts repeat."""
    if usage is not None and bytes(answer.usage) == _counted_value(usage):
        answer = replace(answer, usage=_AS_COUNTED)
    return encode_answer(answer)


def answer_of(run: Run) -> RecordedAnswer | None:
    """Return the recorded answer of a run, or None."""
    answer = decode_answer(run.result) if run.result else None
    if answer is None or answer.usage != _AS_COUNTED:
        return answer
    usage = Usage(
        run.input_tokens or 0, run.cached_tokens or 0, run.output_tokens or 0,
        run.reasoning_tokens or 0,
    )  # fmt: skip
    return replace(answer, usage=msgspec.Raw(usage_value(usage)))


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
        "output": _output(facts),
        "previous_response_id": request.previous_response_id,
        "store": request.is_stored,
        "usage": answer.usage if answer else None,
        **DEFAULTS,
    }
    if request.fields:
        value |= echoed_fields(request.fields)
    if facts.conversation_id is not None:
        value["conversation"] = {"id": facts.conversation_id}
    if answer is not None and answer.fields:
        value.update(answer.fields)
    return value


def _output(facts: ResponseFacts) -> list[msgspec.Raw]:
    """Return the output items; encrypted content only where the client asked for it."""
    shows_all = facts.shows_encrypted or (
        "include" in facts.request.fields and shows_encrypted(facts.request)
    )
    output: list[msgspec.Raw] = []
    for body in facts.output:
        is_unchanged = shows_all or ENCRYPTED_MARK not in body
        output.append(msgspec.Raw(body if is_unchanged else body_without_encrypted(body)))
    return output


def write_response(facts: ResponseFacts) -> bytes:
    """Return the Response object as JSON."""
    return _encode(response_value(facts))


def _incomplete(answer: RecordedAnswer | None) -> dict[str, str]:
    reason = answer.incomplete_reason if answer else None
    return {"reason": reason or "interrupted"}


@lru_cache(maxsize=64)
def usage_value(usage: Usage) -> bytes:
    """Return usage in the format of the Responses API; cached, because a turn needs it twice."""
    return _encode(
        {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
    )


@lru_cache(maxsize=64)
def _counted_value(usage: Usage) -> bytes | None:
    """Return usage as it is read from the counts of a run; None if they cannot hold it."""
    return usage_value(usage) if usage.is_countable else None


def complete_usage(usage: Any) -> bytes | None:
    """Return a server's usage, if it is valid; missing numbers are zero."""
    if not isinstance(usage, dict):
        return None
    complete = dict(usage)
    for name in ("input_tokens", "output_tokens"):
        if type(usage.get(name)) is not int:
            complete[name] = 0
    if type(usage.get("total_tokens")) is not int:
        complete["total_tokens"] = complete["input_tokens"] + complete["output_tokens"]
    for name, numbers in _DETAILS:
        value = usage.get(name)
        details = complete[name] = dict(value) if isinstance(value, dict) else {}
        for number in numbers:
            if type(details.get(number)) is not int:
                details[number] = 0
    return _encode(complete)


_DETAILS = (
    ("input_tokens_details", ("cached_tokens", "cache_write_tokens")),
    ("output_tokens_details", ("reasoning_tokens",)),
)


# ── encrypted reasoning: stored for the model that made it, sent to clients that ask for it ───

ENCRYPTED_REASONING = "reasoning.encrypted_content"
_FIELD = "encrypted_content"
ENCRYPTED_MARK = b'"encrypted_content"'
"""A substring of every item with encrypted content."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def shows_encrypted(request: TurnRequest) -> bool:
    """Whether the client asked for encrypted reasoning."""
    raw = request.fields.get("include")
    return raw is not None and ENCRYPTED_REASONING.encode() in bytes(raw)


def without_encrypted(item: dict[str, Any]) -> dict[str, Any]:
    """Return an event's item without its encrypted content."""
    if item.get("type") != "reasoning" or _FIELD not in item:
        return item
    return {name: value for name, value in item.items() if name != _FIELD}


def body_without_encrypted(body: bytes) -> bytes:
    """Return an item's body without encrypted content; a body that has none is not parsed."""
    if ENCRYPTED_MARK not in body:
        return body
    fields = _decode(body)
    if bytes(fields.get("type", b"")) != b'"reasoning"' or _FIELD not in fields:
        return body
    del fields[_FIELD]
    return _encode(fields)
