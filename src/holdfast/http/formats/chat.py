"""Write responses as chat completions, whole or as chunks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import TurnCancelled
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.chat import (
    Message,
    call_of,
    chat_usage,
    logprobs_of,
    message_of,
    plain_text,
)
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.core.tools.approval_words import approval_text

_encode = msgspec.json.Encoder().encode
COMPLETION_PREFIX = "chatcmpl-"
FINISH_REASONS: dict[str | None, str] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
"""The finish reasons of incomplete answers, by the reason that the Responses API has."""
_CALLS = frozenset({"function_call", "custom_tool_call"})
_WRITTEN = frozenset(
    {
        "response.output_text.delta",
        "response.refusal.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    }
)
"""The events that `_ChunkWriter.write` knows; the others are not decoded."""
_CANCELLED = {"message": "the turn was cancelled", "code": TurnCancelled.code}
"""The error at the end of a cancelled turn's stream; a failed turn has its own."""


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
        self._writer: _ChunkWriter | None = None

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the chunks for these events; most event types have none."""
        writer = self._writer
        chunks: list[bytes] = []
        for event in events:
            delta = event.delta
            if (
                writer is not None
                and delta is not None
                and event.type == "response.output_text.delta"
                and not (delta.logprobs or writer.is_after_tool)
            ):
                # Nearly every event is one of these, so it is written without a further call.
                writer.has_text = True
                chunks.append(writer.before + _encode(delta.delta) + writer.after)
                continue
            if writer is not None and event.type not in _WRITTEN:
                continue
            value = msgspec.json.decode(event.body)
            if writer is None:
                writer = self._writer = _ChunkWriter(self._request, value["response"])
                chunks.append(writer.chunk({"role": "assistant", "content": "", "refusal": None}))
            chunks += writer.write(event.type, value)
            if self._with_trace and event.type == "response.completed":
                chunks.append(writer.trace_chunk(value["response"]))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _ChunkWriter:
    """Write the chunks of one completion."""

    def __init__(self, request: TurnRequest, response: dict[str, Any]) -> None:
        self._request = request
        self._head = {
            "id": completion_id(response["id"]),
            "object": "chat.completion.chunk",
            "created": response["created_at"],
            "model": request.model,
        }
        self.before, _, self.after = self.chunk({"content": ""}).rpartition(b'""')
        self._calls: dict[int, int] = {}
        self._with_arguments: set[int] = set()
        self.has_text = False
        self.is_after_tool = False
        """Whether a tool ran since the last text; then the next text begins a new paragraph."""

    def chunk(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> bytes:
        """Return a chunk of the only choice."""
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return b"data: %s\n\n" % _encode({**self._head, "choices": [choice]})

    def trace_chunk(self, response: dict[str, Any]) -> bytes:
        """Return a chunk with the calls of the gateway's tools."""
        trace = tool_trace(response["output"])
        return b"data: %s\n\n" % _encode({**self._head, "choices": [], "tool_trace": trace})

    def write(self, kind: str, value: dict[str, Any]) -> Iterator[bytes]:
        """Yield the chunks for an event."""
        match kind:
            case "response.output_text.delta":
                content = value.get("logprobs")
                logprobs = {"content": content, "refusal": None} if content else None
                text = f"\n\n{value['delta']}" if self.is_after_tool else value["delta"]
                self.has_text, self.is_after_tool = True, False
                yield self.chunk({"content": text}, logprobs=logprobs)
            case "response.refusal.delta":
                yield self.chunk({"refusal": value["delta"]})
            case "response.reasoning_text.delta":
                yield self.chunk({"reasoning_content": value["delta"]})
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                yield from self._argument_delta(kind, value)
            case "response.output_item.added":
                yield from self._start_call(value)
            case "response.mcp_call.in_progress":
                self.is_after_tool = self.has_text
            case "response.output_item.done" if value["item"].get("type") == "mcp_approval_request":
                item = value["item"]
                text = approval_text(item, item.get("approval_code") or "")
                yield self.chunk({"content": f"\n\n{text}" if self.has_text else text})
                self.has_text = self.is_after_tool = True
            case "response.output_item.done":
                yield from self._end_call(value)
            case "response.completed" | "response.incomplete" | "response.failed":
                yield from self._end(value["response"])

    def _start_call(self, value: dict[str, Any]) -> Iterator[bytes]:
        item = value["item"]
        if item.get("type") in _CALLS:
            number = self._calls[value["output_index"]] = len(self._calls)
            empty = {**item, "arguments": "", "input": ""}
            yield self.chunk({"tool_calls": [{"index": number, **call_of(empty)}]})

    def _argument_delta(self, kind: str, value: dict[str, Any]) -> Iterator[bytes]:
        number = self._calls.get(value.get("output_index", 0))
        if number is not None:
            self._with_arguments.add(value["output_index"])
            yield self._arguments(number, value["delta"], is_custom="custom" in kind)

    def _arguments(self, number: int, text: str, *, is_custom: bool) -> bytes:
        inner = {"custom": {"input": text}} if is_custom else {"function": {"arguments": text}}
        return self.chunk({"tool_calls": [{"index": number, **inner}]})

    def _end_call(self, value: dict[str, Any]) -> Iterator[bytes]:
        """Yield the arguments of a call that had no argument deltas."""
        item, index = value["item"], value["output_index"]
        if item.get("type") not in _CALLS or index in self._with_arguments:
            return
        if index not in self._calls:
            yield from self._start_call(value)
        is_custom = item["type"] == "custom_tool_call"
        text = item.get("input" if is_custom else "arguments") or ""
        yield self._arguments(self._calls[index], text, is_custom=is_custom)

    def _end(self, response: dict[str, Any]) -> Iterator[bytes]:
        if response["status"] in ("failed", "cancelled"):
            error = response.get("error") or _CANCELLED
            body = {"error": {"type": "server_error", "param": None, **error}}
            yield b"data: %s\n\n" % _encode(body)
            return
        reason = (response.get("incomplete_details") or {}).get("reason")
        finish = FINISH_REASONS.get(reason, "tool_calls" if self._calls else "stop")
        yield self.chunk({}, finish)
        if _wants_usage(self._request):
            usage = chat_usage(response.get("usage"))
            yield b"data: %s\n\n" % _encode({**self._head, "choices": [], "usage": usage})


def _wants_usage(request: TurnRequest) -> bool:
    raw = request.chat_fields.get("stream_options")
    options = msgspec.json.decode(raw) if raw is not None else None
    return isinstance(options, dict) and bool(options.get("include_usage"))
