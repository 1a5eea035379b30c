"""Translate a Responses server's events into those of the gateway, and collect the answer."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

import msgspec

from holdfast.core.model.items import item_value
from holdfast.core.openai.stream_events import Delta, item_events
from holdfast.core.projection.normalize import as_text
from holdfast.ports.provider import AnyEvent, ModelEvent
from holdfast.providers.errors import broken, failure_in_stream
from holdfast.providers.http.upstream import WHOLE, read_json
from holdfast.providers.items.accumulator import ItemAccumulator
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_responses.whole_response import (
    CALLS,
    FinishedAnswer,
    Response,
    WholeOutput,
    text_answer,
)

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode_delta = msgspec.json.Decoder(Delta).decode
_SKIPPED = frozenset({"response.created", "response.in_progress", "response.queued"})
_TERMINAL = frozenset({"response.completed", "response.incomplete"})
_FAILURES = frozenset({"response.failed", "response.cancelled", "error"})


class _TerminalEvent(msgspec.Struct):
    response: Response


class ResponsesOutput(WholeOutput):
    """Reads a server's events and returns those of the gateway."""

    def __init__(self, ids: IdAllocator, owner: SealOwner) -> None:
        super().__init__(ids, owner)
        self._done: dict[int, bytes] = {}
        self._in_progress: dict[int, ItemAccumulator] = {}
        self._number: int | None = None
        self._is_numbered = False
        self._last: bytes | None = None
        self._has_plain_deltas = True
        self._position: tuple[object, ...] | None = None
        """Where the last delta belongs; the next one usually belongs there too."""
        self._item_id = ""
        self._text = StringIO()
        self.finished: FinishedAnswer | None = None
        """The answer, once the terminal event has arrived."""

    def read(self, kind: str, data: bytes) -> Sequence[AnyEvent]:
        """Return the events for one server event; set `finished` at the end, raise on failure."""
        if self._has_plain_deltas and (kind.endswith(".delta") or b'.delta"' in data[:80]):
            try:
                delta = _decode_delta(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                # If one delta of a server has other fields, all of them do.
                self._has_plain_deltas = False
                return self._read_any(kind, data)
            index = delta.output_index
            position = (delta.type, delta.item_id, index, delta.content_index, delta.summary_index)
            number = delta.sequence_number
            if position != self._position or not isinstance(number, int) or number == self._number:
                return self._read_delta(delta, data, position)
            # Most deltas continue the last one: no further Python call for them.
            if self._number is not None and number > self._number:
                self._is_numbered = True
            self._number, self._last = number, data
            delta.item_id = self._item_id
            self._text.write(delta.delta)
            return (delta,)
        return self._read_any(kind, data)

    def _read_any(self, kind: str, data: bytes) -> Sequence[AnyEvent]:
        if kind == WHOLE:
            self.finished = self.whole(data)
            return whole_events(self.finished.answer.items)
        if kind in _SKIPPED and kind.encode() in data[:80]:
            return ()
        self._position = None
        value = read_json(data)
        named = value.get("type")
        kind = named if isinstance(named, str) and named else kind
        if kind in _SKIPPED or self._is_copy(value.get("sequence_number"), data):
            return []
        if kind in _TERMINAL:
            response = _terminal_response(data)
            self.finished = self._finish(response, text_answer(response.output))
            return self._missing_events(self.finished.answer.items)
        if kind in _FAILURES or value.get("error"):
            raise _failure(kind, value)
        if kind == "message":
            return []
        self._add_event(kind, value)
        return [ModelEvent(kind, value)]

    def _add_event(self, kind: str, value: Json) -> None:
        """Put the gateway's ids into an event, and collect the data of its item."""
        index = value.get("output_index")
        if not isinstance(index, int):
            index = value["output_index"] = 0
        if not isinstance(value.get("delta", ""), str):
            value["delta"] = as_text(value["delta"])
        item = value.get("item")
        if isinstance(item, dict):
            value["item"] = item = self._with_own_ids(item, index)[0]
            if kind == "response.output_item.done":
                self._done[index] = _encode(item)
                self._in_progress.pop(index, None)
            else:
                self._accumulator(index).begin(item)
        if "item_id" in value:
            value["item_id"] = self._ids.item("", value["item_id"], index)
        if index not in self._done:
            self._accumulator(index).add(kind, value)

    def _accumulator(self, index: int) -> ItemAccumulator:
        accumulator = self._in_progress.get(index)
        if accumulator is None:
            accumulator = self._in_progress[index] = ItemAccumulator()
        return accumulator

    def _streamed_items(self, status: str) -> list[bytes]:
        """Return the streamed items, finished or rebuilt from their parts."""
        items = dict(self._done)
        for index, accumulator in self._in_progress.items():
            item = accumulator.item(status)
            if item is not None:
                if item["type"] in CALLS and "call_id" not in item:
                    item["call_id"] = self._ids.call(None, index)
                items[index] = _encode(item)
        return [items[index] for index in sorted(items)]

    def _missing_events(self, items: list[bytes]) -> list[ModelEvent]:
        """Return events that the server left out, because clients rely on each item's end."""
        if not self._in_progress:
            return [] if self._done else whole_events(items)
        by_id = {value.get("id"): value for value in map(item_value, items)}
        events: list[ModelEvent] = []
        for index, accumulator in sorted(self._in_progress.items()):
            begun = accumulator.item("completed")
            item = by_id.get(begun.get("id")) if begun is not None else None
            if item is not None:
                kind = "response.output_item.done"
                events.append(ModelEvent(kind, {"type": kind, "output_index": index, "item": item}))
        return events

    def _read_delta(
        self, delta: Delta, data: bytes, position: tuple[object, ...]
    ) -> Sequence[AnyEvent]:
        """Read a delta that starts a text or may be a copy."""
        if not delta.type.endswith(".delta"):
            return self._read_any(delta.type, data)
        if self._is_copy(delta.sequence_number, data):
            return ()
        index = delta.output_index
        if position != self._position:
            self._position = position
            self._item_id = self._ids.item("", delta.item_id, index)
            delta.item_id = self._item_id
            is_done = index in self._done
            self._text = StringIO() if is_done else self._accumulator(index).text_of(delta)
        delta.item_id = self._item_id
        self._text.write(delta.delta)
        return (delta,)

    def _is_copy(self, number: object, data: bytes) -> bool:
        """Return whether a server that numbers its events has sent this one before."""
        last, self._last = self._last, data
        if not isinstance(number, int):
            return False
        before, self._number = self._number, number
        if number == before:
            return self._is_numbered and data == last
        if before is not None and number > before:
            self._is_numbered = True
        return False


def whole_events(items: list[bytes]) -> list[ModelEvent]:
    """Return the events of an answer that was not streamed."""
    return [
        ModelEvent(kind, {"type": kind, **data})
        for index, body in enumerate(items)
        for kind, data in item_events(index, item_value(body))
    ]


def _terminal_response(data: bytes) -> Response:
    try:
        return msgspec.json.decode(data, type=_TerminalEvent).response
    except (msgspec.DecodeError, RecursionError) as exc:
        raise broken(
            "the upstream's terminal event has no valid response", "upstream_broken_answer"
        ) from exc


def _failure(kind: str, value: Json) -> Exception:
    if kind == "response.cancelled":
        return broken("the upstream cancelled the response", "upstream_cancelled")
    response = value.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        return failure_in_stream(response["error"])
    return failure_in_stream(value.get("error") or value)
