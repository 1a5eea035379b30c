"""Write responses as chat completions, whole or as chunks."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, TurnCancelled, TurnInterrupted
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.chat import (
    Message,
    call_of,
    chat_usage,
    logprobs_of,
    message_of,
    plain_text,
)
from holdfast.core.openai.response import ResponseFacts, error_of
from holdfast.core.openai.stream_events import LIFECYCLE, StreamEvent
from holdfast.core.tools.approval_words import approval_text

_encode = msgspec.json.Encoder().encode
COMPLETION_PREFIX = "chatcmpl-"
FINISH_REASONS: dict[str | None, str] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
"""The finish reasons of incomplete answers, by the reason that the Responses API has."""
_CALLS = frozenset({"function_call", "custom_tool_call"})
_ADDED = "response.output_item.added"
_WRITTEN = frozenset(
    {
        "response.output_text.delta",
        "response.refusal.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        _ADDED,
        "response.mcp_call.in_progress",
        "response.output_item.done",
    }
)
"""The events of a model that `ChatChunks` knows; the others are not decoded."""
_CANCELLED = {"message": "the turn was cancelled", "code": TurnCancelled.code}
"""The error at the end of a cancelled turn's stream; a failed turn has its own."""
_INTERRUPTED = {
    "message": "the turn was interrupted; send the request again",
    "code": TurnInterrupted.code,
}
"""The error at the end of a stream whose turn lost its worker: its answer is not complete."""


def completion_id(response_id: str) -> str:
    """Return the completion id of a response id."""
    return COMPLETION_PREFIX + response_id.removeprefix("resp_")


def completion(facts: ResponseFacts) -> dict[str, Any]:
    """Return a response as a chat completion."""
    answer = facts.answer
    text = plain_text(facts.output) if facts.text is None else facts.text
    if text is not None:
        message: Message = {
            "role": "assistant", "content": text, "refusal": None, "annotations": [],
        }  # fmt: skip
        logprobs = None
    else:
        message, logprobs = message_of(facts.output), logprobs_of(facts.output)
    usage = msgspec.json.decode(answer.usage) if answer else None
    reason = answer.incomplete_reason if answer else None
    tier = answer.fields.get("service_tier") if answer else None
    return {
        "id": COMPLETION_PREFIX + facts.id.removeprefix("resp_"),
        "object": "chat.completion",
        "created": int(facts.created_at),
        "model": answer.fields.get("model", facts.request.model) if answer else facts.request.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": logprobs,
                "finish_reason": FINISH_REASONS.get(
                    reason, "tool_calls" if "tool_calls" in message else "stop"
                ),
            }
        ],
        "usage": chat_usage(usage),
        "service_tier": tier if tier is not None else "default",
        "system_fingerprint": None,
    }


def tool_trace(output: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of the gateway's tools in an answer."""
    return [item for item in output if str(item.get("type", "")).startswith("mcp_")]


class ChatChunks:
    """Encode a response's events as chunks of one chat completion."""

    def __init__(self, request: TurnRequest, *, with_trace: bool = False) -> None:
        self._request = request
        self._with_trace = with_trace
        self._head: dict[str, Any] | None = None
        """The fields of every chunk, once the response has begun."""
        self._before = self._after = b""
        """A chunk of text, before and after the text itself."""
        self._calls: dict[int, int] = {}
        self._with_arguments: set[int] = set()
        self._has_text = False
        self._is_after_tool = False
        """Whether a tool ran since the last text; then the next text begins a new paragraph."""

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the chunks for these events; most event types have none."""
        chunks: list[bytes] = []
        for event in events:
            delta = event.delta
            if (
                delta is not None
                and event.type == "response.output_text.delta"
                and not (delta.logprobs or self._is_after_tool)
            ):
                # Nearly every event is one of these, so it is written without a further call.
                self._has_text = True
                chunks.append(self._before + _encode(delta.delta) + self._after)
            elif event.type in _WRITTEN:
                value = event.data or msgspec.json.decode(event.encoded or event.body)
                chunks += self._chunks(event.type, value)
            elif event.facts is not None and (self._head is None or event.type not in LIFECYCLE):
                chunks += self._response_chunks(event.type, event.facts)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def pieces(self, event: StreamEvent) -> Sequence[bytes]:
        """Return the chunks for a large event."""
        return (self((event,)),)

    def error(self, error: HoldfastError, _: int) -> bytes:
        """Return the error that ends a stream which cannot be continued."""
        return _error_line(error_of(error))

    def _response_chunks(self, kind: str, facts: ResponseFacts) -> list[bytes]:
        """Return the chunks that begin and end the completion."""
        chunks: list[bytes] = []
        if self._head is None:
            self._head = {
                "id": COMPLETION_PREFIX + facts.id.removeprefix("resp_"),
                "object": "chat.completion.chunk",
                "created": int(facts.created_at),
                "model": self._request.model,
            }
            self._before, _, self._after = self._chunk({"content": ""}).rpartition(b'""')
            chunks.append(self._chunk({"role": "assistant", "content": "", "refusal": None}))
        if kind not in LIFECYCLE:
            chunks += self._end(facts)
            if self._with_trace and kind == "response.completed":
                trace = tool_trace(map(msgspec.json.decode, facts.output))
                chunks.append(self._line([], tool_trace=trace))
        return chunks

    def _line(self, choices: list[dict[str, Any]], **fields: Any) -> bytes:
        return b"data: %s\n\n" % _encode({**(self._head or {}), "choices": choices, **fields})

    def _chunk(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> bytes:
        """Return a chunk of the only choice."""
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return b"data: %s\n\n" % _encode({**(self._head or {}), "choices": [choice]})

    def _chunks(self, kind: str, value: dict[str, Any]) -> Sequence[bytes]:
        """Return the chunks for an event of the model."""
        match kind:
            case "response.output_text.delta":
                content = value.get("logprobs")
                logprobs = {"content": content, "refusal": None} if content else None
                text = f"\n\n{value['delta']}" if self._is_after_tool else value["delta"]
                self._has_text, self._is_after_tool = True, False
                return [self._chunk({"content": text}, logprobs=logprobs)]
            case "response.refusal.delta":
                return [self._chunk({"refusal": value["delta"]})]
            case "response.reasoning_text.delta":
                return [self._chunk({"reasoning_content": value["delta"]})]
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                return self._argument_delta(kind, value)
            case "response.mcp_call.in_progress":
                self._is_after_tool = self._has_text
                return ()
        item = value["item"]
        if item.get("type") in _CALLS:
            return (self._start_call if kind == _ADDED else self._end_call)(value)
        if kind == _ADDED or item.get("type") != "mcp_approval_request":
            return ()
        text = approval_text(item, item.get("approval_code") or "")
        chunk = self._chunk({"content": f"\n\n{text}" if self._has_text else text})
        self._has_text = self._is_after_tool = True
        return [chunk]

    def _start_call(self, value: dict[str, Any]) -> list[bytes]:
        number = self._calls[value["output_index"]] = len(self._calls)
        empty = {**value["item"], "arguments": "", "input": ""}
        return [self._chunk({"tool_calls": [{"index": number, **call_of(empty)}]})]

    def _argument_delta(self, kind: str, value: dict[str, Any]) -> list[bytes]:
        number = self._calls.get(value.get("output_index", 0))
        if number is None:
            return []
        self._with_arguments.add(value["output_index"])
        return [self._arguments(number, value["delta"], is_custom="custom" in kind)]

    def _arguments(self, number: int, text: str, *, is_custom: bool) -> bytes:
        inner = {"custom": {"input": text}} if is_custom else {"function": {"arguments": text}}
        return self._chunk({"tool_calls": [{"index": number, **inner}]})

    def _end_call(self, value: dict[str, Any]) -> list[bytes]:
        """Return the arguments of a call that had no argument deltas."""
        item, index = value["item"], value["output_index"]
        if index in self._with_arguments:
            return []
        chunks = self._start_call(value) if index not in self._calls else []
        is_custom = item["type"] == "custom_tool_call"
        text = item.get("input" if is_custom else "arguments") or ""
        return [*chunks, self._arguments(self._calls[index], text, is_custom=is_custom)]

    def _end(self, facts: ResponseFacts) -> list[bytes]:
        answer = facts.answer
        is_interrupted = facts.status == "incomplete" and answer is None
        if is_interrupted or facts.status in ("failed", "cancelled"):
            error = facts.error or (_INTERRUPTED if is_interrupted else _CANCELLED)
            return [_error_line(error)]
        reason = answer.incomplete_reason if answer and facts.status == "incomplete" else None
        finish = FINISH_REASONS.get(reason, "tool_calls" if self._calls else "stop")
        chunks = [self._chunk({}, finish)]
        if "stream_options" in self._request.chat_fields and _wants_usage(self._request):
            usage = msgspec.json.decode(answer.usage) if answer else None
            chunks.append(self._line([], usage=chat_usage(usage)))
        return chunks


def _error_line(error: dict[str, Any]) -> bytes:
    body = {"error": {"type": "server_error", "param": None, **error}}
    return b"data: %s\n\n" % _encode(body)


def _wants_usage(request: TurnRequest) -> bool:
    raw = request.chat_fields.get("stream_options")
    options = msgspec.json.decode(raw) if raw is not None else None
    return isinstance(options, dict) and bool(options.get("include_usage"))
