"""A Responses server's answer, whole or in events, as ours: ids that are unique, seals marked."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.items import OUTPUT_SUFFIX, item_value
from holdfast.core.response import whole_usage
from holdfast.core.session import Usage
from holdfast.core.stream import Delta, item_events
from holdfast.core.wellformed import as_text
from holdfast.ports.provider import Answer, AnyEvent, ModelEvent
from holdfast.providers.failures import broken, failure_in_stream
from holdfast.providers.growing import GrowingItem
from holdfast.providers.names import Names
from holdfast.providers.origin import Maker
from holdfast.providers.shapes import shape

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode_delta = msgspec.json.Decoder(Delta).decode
_NULL = msgspec.Raw(b"null")
_SKIPPED = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILS = frozenset({"response.failed", "response.cancelled", "error"})


CALLS = frozenset({"function_call", "custom_tool_call"})
"""What a client answers to: each needs an id, whether its server gave it one or not."""


class _Response(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] = []
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None
    service_tier: msgspec.Raw = _NULL
    moderation: msgspec.Raw = _NULL
    tool_usage: msgspec.Raw = _NULL


class _Terminal(msgspec.Struct):
    response: _Response


class _SaidPart(msgspec.Struct, gc=False):
    type: str
    text: str = ""
    refusal: str = ""
    annotations: list[Any] = []


class _Said(msgspec.Struct, gc=False):
    """A message in which everything is in order: nothing in it must be ours but its id."""

    type: Literal["message"]
    id: str
    role: str
    content: list[_SaidPart]
    call_id: None = None
    encrypted_content: None = None


_read_response = msgspec.json.Decoder(_Response).decode
_read_said = msgspec.json.Decoder(_Said).decode


class Ending(msgspec.Struct, frozen=True):
    """A finished answer, and the name its server has for it."""

    answer: Answer
    response_id: str | None


class ResponsesOutput:
    """Takes a server's events, or its whole response, and gives ours."""

    def __init__(self, names: Names, maker: Maker) -> None:
        self._names = names
        self._maker = maker
        self._done: dict[int, bytes] = {}
        self._growing: dict[int, GrowingItem] = {}
        self._number: int | None = None
        self._is_numbered = False
        self._last: bytes | None = None
        self._has_plain_deltas = True
        self._place: tuple[object, ...] | None = None
        """Where the last delta belonged; the next one most often does as well."""
        self._ours = ""
        self._texts: list[str] = []
        self.ending: Ending | None = None

    def take(self, kind: str, data: bytes) -> Sequence[AnyEvent]:
        """Take one event in; the terminal one sets `ending`, a failure is raised."""
        if kind == "whole":
            return self._take_whole(data)
        if self._has_plain_deltas and (kind.endswith(".delta") or b'.delta"' in data[:80]):
            try:
                delta = _decode_delta(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                # A server that says more of its deltas, or something else, does so every time.
                self._has_plain_deltas = False
            else:
                if delta.type.endswith(".delta"):
                    return self._take_delta(delta, data)
        return self._take_any(kind, data)

    def _take_any(self, kind: str, data: bytes) -> Sequence[AnyEvent]:
        self._place = None
        value = _read(data)
        named = value.get("type")
        kind = named if isinstance(named, str) and named else kind
        if kind in _SKIPPED or self._is_copy(value.get("sequence_number"), data):
            return []
        if kind in _ENDS:
            self.ending = self._end(_terminal(data))
            return self._untold(self.ending.answer.items)
        if kind in _FAILS or value.get("error"):
            raise _failure(kind, value)
        if kind == "message":
            return []
        self._hear(kind, value)
        return [ModelEvent(kind, value)]

    def _hear(self, kind: str, value: Json) -> None:
        """Give an event our names, and remember what it tells of its item."""
        index = value.get("output_index")
        if not isinstance(index, int):
            index = value["output_index"] = 0
        if not isinstance(value.get("delta", ""), str):
            value["delta"] = as_text(value["delta"])
        item = value.get("item")
        if isinstance(item, dict):
            value["item"] = item = self._own(item, index)
            if kind == "response.output_item.done":
                self._done[index] = _encode(item)
                self._growing.pop(index, None)
            else:
                self._grown(index).begin(item)
        if "item_id" in value:
            value["item_id"] = self._names.item("", value["item_id"], index)
        if index not in self._done:
            self._grown(index).grow(kind, value)

    def _grown(self, index: int) -> GrowingItem:
        return self._growing.setdefault(index, GrowingItem())

    def _told(self, status: str) -> list[bytes]:
        """Return the items that the events told: finished, or rebuilt from what they said."""
        told = dict(self._done)
        for index, growing in self._growing.items():
            item = growing.item(status)
            if item is not None:
                if item["type"] in CALLS and "call_id" not in item:
                    item["call_id"] = self._names.call(None, index)
                told[index] = _encode(item)
        return [told[index] for index in sorted(told)]

    def _untold(self, items: list[bytes]) -> list[ModelEvent]:
        """Return the events that are lacking at the end of the answer: nobody may miss a word."""
        if not self._done and not self._growing:
            return whole_events(items)
        by_id = {value.get("id"): value for value in map(item_value, items)}
        events: list[ModelEvent] = []
        for index, growing in sorted(self._growing.items()):
            begun = growing.item("completed")
            item = by_id.get(begun.get("id")) if begun is not None else None
            if item is not None:
                kind = "response.output_item.done"
                events.append(ModelEvent(kind, {"type": kind, "output_index": index, "item": item}))
        return events

    def _take_delta(self, delta: Delta, data: bytes) -> Sequence[AnyEvent]:
        if self._is_copy(delta.sequence_number, data):
            return ()
        index = delta.output_index
        place = (delta.type, delta.item_id, index, delta.content_index, delta.summary_index)
        if place == self._place:
            delta.item_id = self._ours
        else:
            self._place = place
            self._ours = delta.item_id = self._names.item("", delta.item_id, index)
            self._texts = [] if index in self._done else self._grown(index).texts(delta)
        self._texts.append(delta.delta)
        return (delta,)

    def _is_copy(self, number: object, data: bytes) -> bool:
        """Whether a server that numbers its events has sent this one before."""
        before = self._number
        last, self._last = self._last, data
        if not isinstance(number, int):
            return False
        if before is not None and number > before:
            self._is_numbered = True
        self._number = number
        return self._is_numbered and number == before and data == last

    def whole(self, data: bytes) -> Ending:
        """Return a whole response's answer."""
        try:
            if not data.isascii():
                data.decode()  # items are not looked into, and have to be readable later
            response = _read_response(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise broken("the upstream's answer is no response", "upstream_broken_answer") from exc
        return self._end(response)

    def _take_whole(self, data: bytes) -> list[ModelEvent]:
        self.ending = self.whole(data)
        return whole_events(self.ending.answer.items)

    def _end(self, response: _Response) -> Ending:
        status: Literal["completed", "incomplete"]
        match response.status:
            case "completed" | None if not response.error:
                status = "completed"
            case "incomplete":
                status = "incomplete"
            case "queued" | "in_progress":
                raise broken(
                    f"the upstream answered with a response that is still {response.status}",
                    "upstream_unfinished",
                )
            case "cancelled":
                raise broken("the upstream cancelled the response", "upstream_cancelled")
            case _:
                raise failure_in_stream(response.error)
        items = [self._own_bytes(raw, index) for index, raw in enumerate(response.output)]
        if not items:
            items = self._told(status)
        details = response.incomplete_details
        answer = Answer(
            items=items,
            status=status,
            incomplete_reason=_reason(details) if details is not None else None,
            usage=_usage(response.usage),
            usage_detail=whole_usage(response.usage) if response.usage else None,
            fields=_kept_fields(response),
        )
        return Ending(answer, response.id)

    def _own_bytes(self, raw: msgspec.Raw, index: int) -> bytes:
        """Return an item's bytes, untouched where nothing in them must be ours."""
        try:
            said = _read_said(raw)
        except msgspec.DecodeError:
            pass
        else:
            if self._names.item("message", said.id, index) == said.id:
                return bytes(raw)
        item = _read(bytes(raw))
        before = (item.get("id"), item.get("call_id"), item.get("encrypted_content"))
        own, is_odd = self._owned(item, index)
        after = (own["id"], own.get("call_id"), own.get("encrypted_content"))
        return bytes(raw) if before == after and not is_odd else _encode(own)

    def _own(self, item: Json, index: int) -> Json:
        return self._owned(item, index)[0]

    def _owned(self, item: Json, index: int) -> tuple[Json, bool]:
        """Return an item in our names and in order, and whether it was out of order."""
        if not isinstance(item.get("type") or item.get("role"), str):
            raise broken("the upstream's answer has an item of no type", "upstream_broken_answer")
        if not item.get("type"):
            item["type"] = "message"
        is_odd = shape(item)
        kind = str(item.get("type") or "item")
        item["id"] = self._names.item(kind, item.get("id"), index)
        call_id = item.get("call_id")
        if call_id is not None or kind in CALLS:
            is_output = kind.endswith(OUTPUT_SUFFIX)
            ours = self._names.answered(call_id) if is_output else self._names.call(call_id, index)
            item["call_id"] = ours if isinstance(ours, str) else str(ours)
        sealed = item.get("encrypted_content")
        if isinstance(sealed, str) and sealed:
            item["encrypted_content"] = self._maker.mark(sealed)
        return item, is_odd


def whole_events(items: list[bytes]) -> list[ModelEvent]:
    """Return the events of an answer that came as a whole, its texts and arguments included."""
    return [
        ModelEvent(kind, {"type": kind, **data})
        for index, body in enumerate(items)
        for kind, data in item_events(index, item_value(body))
    ]


def _read(data: bytes) -> Json:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise broken("the upstream's answer is no JSON", "upstream_broken_answer") from exc
    if not isinstance(value, dict):
        raise broken("the upstream's answer is no JSON object", "upstream_broken_answer")
    return value


def _terminal(data: bytes) -> _Response:
    try:
        return msgspec.json.decode(data, type=_Terminal).response
    except (msgspec.DecodeError, RecursionError) as exc:
        raise broken("the upstream's last event is none", "upstream_broken_answer") from exc


def _failure(kind: str, value: Json) -> Exception:
    if kind == "response.cancelled":
        return broken("the upstream cancelled the response", "upstream_cancelled")
    response = value.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        return failure_in_stream(response["error"])
    return failure_in_stream(value.get("error") or value)


def _kept_fields(response: _Response) -> dict[str, msgspec.Raw]:
    told = (
        ("service_tier", response.service_tier),
        ("moderation", response.moderation),
        ("tool_usage", response.tool_usage),
    )
    return {name: raw for name, raw in told if raw is not _NULL and bytes(raw) != b"null"}


def _reason(details: Any) -> str | None:
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def _usage(told: Any) -> Usage | None:
    if type(told) is not dict:
        return None
    return Usage(
        input_tokens=_number(told, "input_tokens"),
        cached_tokens=_number(told.get("input_tokens_details"), "cached_tokens"),
        output_tokens=_number(told, "output_tokens"),
        reasoning_tokens=_number(told.get("output_tokens_details"), "reasoning_tokens"),
    )


def _number(told: Any, name: str) -> int:
    value = told[name] if type(told) is dict and name in told else 0
    return value if type(value) is int else 0
