"""Translate a Chat server's answer, whole or in chunks, into items and events of Responses."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.model.items import message
from holdfast.core.model.session import Usage
from holdfast.core.openai.response import complete_usage
from holdfast.core.openai.stream_events import Delta
from holdfast.core.projection.normalize import as_text
from holdfast.ports.provider import Answer, AnyEvent, TextAnswer
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.ids import IdAllocator, ToolName
from holdfast.providers.items.response_events import CallPart, Events, Item, ReasoningPart, TextPart
from holdfast.providers.items.shapes import objects

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_INCOMPLETE = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
_FAILED = frozenset({"error", "abort", "cancelled"})
_LEGACY_CALL = "function_call"


class _TextDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    annotations: None = None
    tool_calls: None = None
    function_call: None = None


class _TextChoice(msgspec.Struct):
    delta: _TextDelta
    index: Literal[0] = 0
    logprobs: None = None
    finish_reason: str | None = None


class _TextChunk(msgspec.Struct):
    """A chunk that only continues a text, as most chunks do, or ends it."""

    choices: tuple[_TextChoice]
    error: None = None
    usage: None = None
    service_tier: str | None = None


_read_text_chunk = msgspec.json.Decoder(_TextChunk).decode


class ChatOutput:
    """Reads an answer's chunks and returns their events, and at the end the answer.

    A whole completion is one chunk. Text, reasoning and calls may come in any order. An item ends
    before another one starts, as at OpenAI. Servers may interleave the fragments of calls: the
    events of a call are held back until the calls before it have ended.
    """

    def __init__(self, ids: IdAllocator, tool_names: Mapping[str, ToolName] | None = None) -> None:
        self._ids = ids
        self._tool_names = tool_names or {}
        self._count = 0
        self._text: TextPart | None = None
        self._reasoning: ReasoningPart | None = None
        self._calls: list[CallPart] = []
        self._call_at: dict[int, CallPart] = {}
        """The latest call at each index."""
        self._open_calls: deque[CallPart] = deque()
        """The calls that have not ended; only the events of the first one are sent."""
        self._items: dict[int, Item] = {}
        self._annotations: list[Any] = []
        self._usage: Json | None = None
        self._finish: str | None = None
        self._tier: str | None = None
        self._expects_text = True
        """Whether the next chunk is likely to be a `_TextChunk`, as the last one was."""

    @property
    def is_finished(self) -> bool:
        """Whether the server has sent a finish reason."""
        return self._finish is not None

    def read_chunk(self, data: bytes) -> Events:
        """Return the events of a chunk."""
        if self._expects_text:
            try:
                chunk = _read_text_chunk(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._expects_text = False
            else:
                self._tier = chunk.service_tier or self._tier
                choice, part = chunk.choices[0], self._text
                self._finish = choice.finish_reason or self._finish
                text = choice.delta.content or ""
                if part is None or part.kind != "output_text" or self._reasoning is not None:
                    return self._add_text(text, [], "output_text") if text else ()
                # `TextPart.add` inlined, because this runs for every chunk.
                part.text.write(text)
                return (Delta(
                    type=part.delta_type, item_id=part.item_id, output_index=part.index,
                    content_index=0, delta=text, logprobs=[],
                ),) if text else ()  # fmt: skip
        return self.read(read_json(data))

    def read(self, chunk: Json) -> Events:
        """Return the events of a chunk, or of a whole completion."""
        if chunk.get("error"):
            raise failure_in_stream(chunk["error"])
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if isinstance(chunk.get("service_tier"), str):
            self._tier = chunk["service_tier"]
        events: list[AnyEvent] = []
        for choice in objects(chunk.get("choices")):
            if choice.get("index") not in (0, None):
                continue
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                events += self._read_delta(delta, _logprobs(choice))
            if choice.get("finish_reason"):
                self._finish = as_text(choice["finish_reason"])
        return events

    def read_done(self) -> None:
        """Treat the end mark of a stream as its finish reason, if the server sent none."""
        if self._finish is None and self._count:
            self._finish = "stop"

    def _read_delta(self, delta: Json, logprobs: list[Any]) -> Events:
        events: list[AnyEvent] = []
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            events += self._add_reasoning(reasoning)
        if delta.get("refusal"):
            events += self._add_text(as_text(delta["refusal"]), [], "refusal")
        content = delta.get("content")
        if isinstance(content, list):
            content = "".join(map(_part_text, content))
        if content:
            self._expects_text = True
            events += self._add_text(as_text(content), logprobs, "output_text")
        self._annotations += map(_annotation, objects(delta.get("annotations")))
        for number, call in enumerate(objects(delta.get("tool_calls"))):
            events += self._add_call(call, number)
        if isinstance(delta.get(_LEGACY_CALL), dict):
            # The form before tools existed: one call, without an id.
            events += self._add_call({"index": 0, "function": delta[_LEGACY_CALL]}, 0)
        return events

    def _add_reasoning(self, text: str) -> Events:
        events: list[AnyEvent] = []
        if self._reasoning is None:
            events += self._end_whole_calls()
            index = self._next_index()
            self._reasoning = ReasoningPart(self._ids.item("reasoning", None, index), index)
            events += self._reasoning.begin()
        return [*events, *self._reasoning.add(text)]

    def _add_text(self, text: str, logprobs: list[Any], kind: str) -> Events:
        if self._text is not None and self._text.kind == kind and self._reasoning is None:
            return self._text.add(text, logprobs)
        events = [*self._end_reasoning()] if self._reasoning is not None else []
        if self._text is not None and self._text.kind != kind:
            events += self._end_text("completed")
        if self._text is None:
            events += self._end_whole_calls()
            index = self._next_index()
            self._text = TextPart(self._ids.item("message", None, index), index, kind)
            events += self._text.begin()
        return [*events, *self._text.add(text, logprobs)]

    def _add_call(self, fragment: Json, number: int) -> Events:
        events = [*self._end_reasoning(), *self._end_text("completed")]
        custom = fragment.get("custom")
        inner = custom or fragment.get("function")
        inner = inner if isinstance(inner, dict) else {}
        name = as_text(inner.get("name"))
        part = self._continued_call(fragment, name, number)
        if part is None:
            events += self._end_whole_calls()
            part = self._begin_call(fragment, name, is_custom=custom is not None)
            part.held += part.begin()
        elif part.index in self._items:
            return events  # nothing can follow whole arguments
        elif not part.name:
            self._set_name(part, name)
        text = inner.get("input") if part.is_custom else inner.get("arguments")
        if text:
            part.held += part.add(as_text(text))
        return [*events, *self._release_first_call()]

    def _continued_call(self, fragment: Json, name: str, number: int) -> CallPart | None:
        """Return the call that a fragment continues, or None if it starts a new one.

        Some servers send several whole calls under one index, or without an index. A fragment
        starts a new call if it has a name and the call at its index is a different one or already
        has all of its arguments.
        """
        index = fragment.get("index")
        if isinstance(index, int):
            part = self._call_at.get(index)
        elif number:
            part = None  # the second call of one list
        else:
            part = self._calls[-1] if self._calls else None
        if part is None or not name or not part.server_name:
            return part
        server_id = fragment.get("id")
        if server_id and part.server_id:
            return part if server_id == part.server_id else None
        is_other = name != part.server_name or part.has_whole_arguments
        return None if is_other else part

    def _begin_call(self, fragment: Json, name: str, *, is_custom: bool) -> CallPart:
        index, server_id = self._next_index(), fragment.get("id")
        part = CallPart(
            self._ids.item("function_call", None, index),
            index,
            self._ids.call(server_id, index),
            is_custom=is_custom,
        )
        part.server_id = server_id
        self._set_name(part, name)
        self._calls.append(part)
        self._open_calls.append(part)
        if isinstance(fragment.get("index"), int):
            self._call_at[fragment["index"]] = part
        return part

    def _set_name(self, part: CallPart, name: str) -> None:
        part.server_name = part.name = name
        tool = self._tool_names.get(name)
        if tool is not None:
            part.name, part.namespace = tool.name, tool.namespace

    def _release_first_call(self) -> Events:
        """Return the events of the first open call that are held back."""
        if not self._open_calls:
            return []
        first = self._open_calls[0]
        events, first.held = first.held, []
        return events

    def _end_whole_calls(self) -> Events:
        """End the first calls that have a name and all of their arguments."""
        events: list[AnyEvent] = []
        while self._open_calls and self._open_calls[0].is_whole:
            events += self._end_first_call("completed")
        return events

    def _end_first_call(self, status: str) -> Events:
        call = self._open_calls.popleft()
        ended, self._items[call.index] = call.end(status)
        return [*call.held, *ended, *self._release_first_call()]

    def _next_index(self) -> int:
        self._count += 1
        return self._count - 1

    def _end_reasoning(self) -> Events:
        if self._reasoning is None:
            return []
        events, self._items[self._reasoning.index] = self._reasoning.end()
        self._reasoning = None
        return events

    def _end_text(self, status: str) -> Events:
        if self._text is None:
            return []
        events, self._items[self._text.index] = self._text.end(status, self._annotations)
        self._text = None
        return events

    def end(self) -> tuple[Events, Answer]:
        """Return the last events and the answer; raise if the server never finished."""
        finish = self._finish
        if finish is None:
            raise broken(
                "the upstream's answer ended without a finish reason", "upstream_truncated"
            )
        if finish in _FAILED:
            raise broken(f"the upstream ended its answer with {finish!r}", "upstream_gave_up")
        # Gemini appends its own reason: `content_filter: PROHIBITED_CONTENT`.
        reason = _INCOMPLETE.get(finish.partition(":")[0].lower())
        status: Literal["completed", "incomplete"] = "incomplete" if reason else "completed"
        only = None if self._items or self._calls or self._reasoning else self._text
        events = [*self._end_reasoning()] if self._reasoning is not None else []
        events += self._end_text(status)
        if not self._items and not self._calls:
            # An empty answer is valid: return a message without text.
            index = self._next_index()
            empty = TextPart(self._ids.item("message", None, index), index)
            ended, self._items[index] = empty.end(status, [])
            events += [*empty.begin(), *ended]
        while self._open_calls:
            events += self._end_first_call(status)
        bodies = [_encode(self._items[index]) for index in sorted(self._items)]
        plain = None
        is_plain = status == "completed" and not self._annotations
        if only is not None and only.kind == "output_text" and is_plain and not only.logprobs:
            text = only.text.getvalue()
            plain = TextAnswer(message("assistant", text, bodies[0], only.item_id), text)
        answer = Answer(
            items=bodies,
            plain=plain,
            status=status,
            incomplete_reason=reason,
            usage=_usage(self._usage) if self._usage is not None else None,
            usage_detail=_usage_detail(self._usage) if self._usage is not None else None,
            fields={"service_tier": msgspec.Raw(_encode(self._tier))} if self._tier else {},
        )
        return events, answer


def _logprobs(choice: Json) -> list[Any]:
    logprobs = choice.get("logprobs")
    listed = logprobs.get("content") if isinstance(logprobs, dict) else None
    return listed if isinstance(listed, list) else []


def _part_text(part: Any) -> str:
    return as_text(part.get("text")) if isinstance(part, dict) else as_text(part)


def _annotation(annotation: Any) -> Any:
    citation = annotation.get("url_citation") if isinstance(annotation, dict) else None
    return {"type": "url_citation", **citation} if isinstance(citation, dict) else annotation


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _details(usage: Json, side: str) -> Json:
    details = usage.get(f"{side}_tokens_details")
    return details if isinstance(details, dict) else {}


def _usage(usage: Json) -> Usage:
    return Usage(
        input_tokens=_number(usage.get("prompt_tokens")),
        cached_tokens=_number(_details(usage, "prompt").get("cached_tokens")),
        output_tokens=_number(usage.get("completion_tokens")),
        reasoning_tokens=_number(_details(usage, "completion").get("reasoning_tokens")),
    )


def _usage_detail(usage: Json) -> bytes | None:
    """Return usage in the Responses format, with every detail of the Chat server."""
    input_tokens, output_tokens = (
        _number(usage.get("prompt_tokens")),
        _number(usage.get("completion_tokens")),
    )
    return complete_usage(
        {
            "input_tokens": input_tokens,
            "input_tokens_details": usage.get("prompt_tokens_details") or None,
            "output_tokens": output_tokens,
            "output_tokens_details": usage.get("completion_tokens_details") or None,
            "total_tokens": _number(usage.get("total_tokens")) or input_tokens + output_tokens,
        }
    )


class DuplicateChunkFilter:
    """Detects a server that sends every chunk twice, and skips the copies.

    Only a repeated first chunk proves it: later chunks may legitimately repeat a text.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._count = 0
        self.is_active = True
        """Whether the server has sent every chunk twice so far."""

    def is_copy(self, data: bytes) -> bool:
        """Return whether this chunk repeats the one before."""
        self._count += 1
        if not self.is_active:
            return False
        if self._count % 2:
            self._last = data
            return False
        if data == self._last:
            return True
        self.is_active = False
        return False
