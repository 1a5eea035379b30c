"""A Chat server's answer, whole or in chunks, as items and events of the Responses API."""

from typing import Any, Literal

import msgspec

from holdfast.core.model.session import Usage
from holdfast.core.openai.response import whole_usage
from holdfast.core.projection.normalize import as_text
from holdfast.ports.provider import Answer, AnyEvent
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.response_events import CallPart, Events, Item, ReasoningPart, TextPart
from holdfast.providers.items.shapes import objects

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BROKEN = frozenset({"error", "abort", "cancelled"})


class _Said(msgspec.Struct):
    content: str
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    annotations: None = None
    tool_calls: None = None


class _Choice(msgspec.Struct):
    delta: _Said
    index: Literal[0] = 0
    logprobs: None = None
    finish_reason: None = None


class _Words(msgspec.Struct):
    """Some more of a text and nothing else that we look at: what most chunks are."""

    choices: tuple[_Choice]
    error: None = None
    usage: None = None
    service_tier: str | None = None


_read_words = msgspec.json.Decoder(_Words).decode


class ChatOutput:
    """Takes an answer's pieces in and gives the events they make; at the end, the answer.

    A whole completion is one piece. Text, thoughts and calls may come in any order; an item is
    ended when another begins, except calls, which servers may fill in turns.
    """

    def __init__(self, names: IdAllocator) -> None:
        self._names = names
        self._count = 0
        self._text: TextPart | None = None
        self._reasoning: ReasoningPart | None = None
        self._calls: dict[Any, CallPart] = {}
        self._items: dict[int, Item] = {}
        self._annotations: list[Any] = []
        self._usage: Json | None = None
        self._finish: str | None = None
        self._tier: str | None = None
        self._expects_words = True
        """Whether chunks are words alone: so they are until one is not, and after one that was."""

    @property
    def is_finished(self) -> bool:
        """Whether the server has said why it stopped."""
        return self._finish is not None

    def take_chunk(self, data: bytes) -> Events:
        """Take a chunk in."""
        if self._expects_words:
            try:
                words = _read_words(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._expects_words = False
            else:
                self._tier = words.service_tier or self._tier
                text = words.choices[0].delta.content
                return self._say(text, [], "output_text") if text else ()
        return self.take(read_json(data))

    def take(self, piece: Json) -> Events:
        """Take a chunk, or a whole completion, in."""
        if piece.get("error"):
            raise failure_in_stream(piece["error"])
        if isinstance(piece.get("usage"), dict):
            self._usage = piece["usage"]
        if isinstance(piece.get("service_tier"), str):
            self._tier = piece["service_tier"]
        events: list[AnyEvent] = []
        for choice in objects(piece.get("choices")):
            if choice.get("index") not in (0, None):
                continue
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                events += self._take_delta(delta, _logprobs(choice))
            if choice.get("finish_reason"):
                self._finish = as_text(choice["finish_reason"])
        return events

    def _take_delta(self, delta: Json, logprobs: list[Any]) -> Events:
        events: list[AnyEvent] = []
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            events += self._think(thought)
        if delta.get("refusal"):
            events += self._say(as_text(delta["refusal"]), [], "refusal")
        content = delta.get("content")
        if isinstance(content, list):
            content = "".join(map(_text_of, content))
        if content:
            content = as_text(content)
            self._expects_words = True
            events += self._say(content, logprobs, "output_text")
        self._annotations += map(_annotation, objects(delta.get("annotations")))
        for number, call in enumerate(objects(delta.get("tool_calls"))):
            events += self._call(call, number)
        return events

    def _think(self, thought: str) -> Events:
        events: list[AnyEvent] = []
        if self._reasoning is None:
            index = self._next()
            self._reasoning = ReasoningPart(self._names.item("reasoning", None, index), index)
            events += self._reasoning.begin()
        return [*events, *self._reasoning.grow(thought)]

    def _say(self, text: str, logprobs: list[Any], kind: str) -> Events:
        if self._text is not None and self._text.kind == kind and self._reasoning is None:
            return self._text.grow(text, logprobs)
        events = [*self._end_reasoning()]
        if self._text is not None and self._text.kind != kind:
            events += self._end_text("completed")
        if self._text is None:
            index = self._next()
            self._text = TextPart(self._names.item("message", None, index), index, kind)
            events += self._text.begin()
        return [*events, *self._text.grow(text, logprobs)]

    def _call(self, call: Json, number: int) -> Events:
        events = [*self._end_reasoning(), *self._end_text("completed")]
        place = call.get("index")
        place = place if isinstance(place, int) else number
        custom = call.get("custom")
        inner = custom or call.get("function")
        inner = inner if isinstance(inner, dict) else {}
        part = self._calls.get(place)
        if part is None:
            index = self._next()
            name = self._names.item("function_call", None, index)
            ours = self._names.call(call.get("id"), index)
            part = self._calls[place] = CallPart(name, index, ours, is_custom=custom is not None)
            part.name = as_text(inner.get("name"))
            events += part.begin()
        elif not part.name:
            part.name = as_text(inner.get("name"))
        text = inner.get("input") if part.is_custom else inner.get("arguments")
        return [*events, *part.grow(as_text(text))] if text else events

    def _next(self) -> int:
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
        """Return the last events and the answer; without a reason to stop there is none."""
        finish = self._finish
        if finish is None:
            raise broken("the upstream's answer ended before it was finished", "upstream_truncated")
        if finish in _BROKEN:
            raise broken(f"the upstream gave up: {finish}", "upstream_gave_up")
        reason = _CUT.get(finish)
        status: Literal["completed", "incomplete"] = "incomplete" if reason else "completed"
        events = [*self._end_reasoning(), *self._end_text(status)]
        if not self._items and not self._calls:
            # An empty answer is an answer: a message with no words.
            index = self._next()
            empty = TextPart(self._names.item("message", None, index), index)
            ended, self._items[index] = empty.end(status, [])
            events += [*empty.begin(), *ended]
        for call in self._calls.values():
            ended, self._items[call.index] = call.end(status)
            events += ended
        answer = Answer(
            items=[_encode(self._items[index]) for index in sorted(self._items)],
            status=status,
            incomplete_reason=reason,
            usage=_usage(self._usage),
            usage_detail=_usage_detail(self._usage),
            fields={"service_tier": msgspec.Raw(_encode(self._tier))} if self._tier else {},
        )
        return events, answer


def _logprobs(choice: Json) -> list[Any]:
    found = choice.get("logprobs")
    listed = found.get("content") if isinstance(found, dict) else None
    return listed if isinstance(listed, list) else []


def _text_of(part: Any) -> str:
    return as_text(part.get("text")) if isinstance(part, dict) else as_text(part)


def _annotation(one: Any) -> Any:
    if isinstance(one, dict) and isinstance(one.get("url_citation"), dict):
        return {"type": "url_citation", **one["url_citation"]}
    return one


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _details(told: Json, of: str) -> Json:
    details = told.get(f"{of}_tokens_details")
    return details if isinstance(details, dict) else {}


def _usage(told: Json | None) -> Usage | None:
    if told is None:
        return None
    return Usage(
        input_tokens=_number(told.get("prompt_tokens")),
        cached_tokens=_number(_details(told, "prompt").get("cached_tokens")),
        output_tokens=_number(told.get("completion_tokens")),
        reasoning_tokens=_number(_details(told, "completion").get("reasoning_tokens")),
    )


def _usage_detail(told: Json | None) -> bytes | None:
    """Return usage in the words of Responses, with every detail that Chat told."""
    if told is None:
        return None
    given, made = _number(told.get("prompt_tokens")), _number(told.get("completion_tokens"))
    return whole_usage(
        {
            "input_tokens": given,
            "input_tokens_details": told.get("prompt_tokens_details") or None,
            "output_tokens": made,
            "output_tokens_details": told.get("completion_tokens_details") or None,
            "total_tokens": _number(told.get("total_tokens")) or given + made,
        }
    )


class DuplicateChunkFilter:
    """Notices a server that sends every chunk twice, by its opening one, and skips the copies.

    Only an opening chunk that comes twice gives such a server away: later on, the same word may
    honestly be said twice.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._count = 0
        self._is_doubling = True

    def is_copy(self, data: bytes) -> bool:
        """Whether this chunk is the copy of the one before."""
        self._count += 1
        if not self._is_doubling:
            return False
        if self._count % 2:
            self._last = data
            return False
        if data == self._last:
            return True
        self._is_doubling = False
        return False
