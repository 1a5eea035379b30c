"""A Responses server's events as ours, and the answer that they tell."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.items import item_value
from holdfast.core.openai.stream_events import Delta, item_events
from holdfast.core.projection.normalize import as_text
from holdfast.ports.provider import AnyEvent, ModelEvent
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import read_json
from holdfast.providers.items.accumulator import ItemAccumulator
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_responses.whole_response import CALLS, Ending, Response, WholeOutput

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode_delta = msgspec.json.Decoder(Delta).decode
_SKIPPED = frozenset({"response.created", "response.in_progress", "response.queued"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_FAILS = frozenset({"response.failed", "response.cancelled", "error"})


class _Terminal(msgspec.Struct):
    response: Response


class ResponsesOutput(WholeOutput):
    """Takes a server's events, and gives ours."""

    def __init__(self, names: IdAllocator, maker: SealOwner) -> None:
        super().__init__(names, maker)
        self._done: dict[int, bytes] = {}
        self._growing: dict[int, ItemAccumulator] = {}
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
        value = read_json(data)
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
            value["item"] = item = self._owned(item, index)[0]
            if kind == "response.output_item.done":
                self._done[index] = _encode(item)
                self._growing.pop(index, None)
            else:
                self._grown(index).begin(item)
        if "item_id" in value:
            value["item_id"] = self._names.item("", value["item_id"], index)
        if index not in self._done:
            self._grown(index).grow(kind, value)

    def _grown(self, index: int) -> ItemAccumulator:
        return self._growing.setdefault(index, ItemAccumulator())

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
        last, self._last = self._last, data
        if not isinstance(number, int):
            return False
        before, self._number = self._number, number
        if number == before:
            return self._is_numbered and data == last
        if before is not None and number > before:
            self._is_numbered = True
        return False

    def _take_whole(self, data: bytes) -> list[ModelEvent]:
        self.ending = self.whole(data)
        return whole_events(self.ending.answer.items)


def whole_events(items: list[bytes]) -> list[ModelEvent]:
    """Return the events of an answer that came as a whole, its texts and arguments included."""
    return [
        ModelEvent(kind, {"type": kind, **data})
        for index, body in enumerate(items)
        for kind, data in item_events(index, item_value(body))
    ]


def _terminal(data: bytes) -> Response:
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
