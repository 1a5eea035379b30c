"""The events of a response's stream, as they are sent.

Events are numbered without gaps. The first ones and the last one contain the response itself and
are built from its record; those in between come from the model. Most events are deltas of text:
such an event stays a value, as those with the response do, and its JSON is encoded only when a
reader or a journal needs it.

A journal has batches of events, packed. Of an event with the response it stores only the status:
the response is rebuilt from the record. The terminal event is not stored, because the record has
it.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.openai.response import ResponseFacts, ResponseStatus, response_value
from holdfast.core.transaction.changes import JournalRow
from holdfast.core.transaction.commands import JournalEntry

CREATED = "response.created"
QUEUED = "response.queued"
IN_PROGRESS = "response.in_progress"
LIFECYCLE = frozenset({CREATED, QUEUED, IN_PROGRESS})
TERMINAL: dict[ResponseStatus, str] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}
DELTA_BYTES = 160
"""The approximate size of a delta's JSON without its text."""
DELTA_CHARACTERS = 16 * 1024
"""The longest text of one delta; a longer one is split, so that a reader can stop in between."""
RESPONSE_BYTES = 1024
"""The approximate size of a response's JSON without its output and the fields of its request."""

_encode = msgspec.json.Encoder().encode


class Delta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The most frequent event of a model: a piece of text, and where it belongs.

    An event with other fields, or with fields of other types, is not decoded as a delta.
    """

    type: str
    sequence_number: int | msgspec.UnsetType = msgspec.UNSET
    item_id: str
    output_index: int
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    summary_index: int | msgspec.UnsetType = msgspec.UNSET
    delta: str
    logprobs: Any = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


FAST = 1
"""Compression level: events are so repetitive that a higher level gains little."""


class JournalEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in a journal: its JSON, or the status of the response that it contains."""

    type: str
    body: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[JournalEvent]).decode


def pack_events(first: int, events: Sequence[JournalEvent]) -> JournalEntry:
    """Return a batch whose first event has the number `first`."""
    body = zlib.compress(_pack(events), FAST)
    return JournalEntry(first=first, last=first + len(events) - 1, body=body)


def unpack_events(row: JournalRow) -> list[JournalEvent]:
    """Return the events of a batch; the first one has the number `row.first_no`."""
    return _unpack(zlib.decompress(row.body))


class StreamEvent(msgspec.Struct, gc=False):
    """One numbered event of a stream."""

    type: str
    number: int
    encoded: bytes | None
    """Its JSON, number included; None until it is encoded."""
    status: ResponseStatus | None = None
    """The status of the response, if the event contains one; a journal stores nothing else of
    it."""
    delta: Delta | None = None
    """The event itself, if it is a delta."""
    size: int = 0
    """The approximate size in bytes; 0 if it is not counted."""
    facts: ResponseFacts | None = None
    """The response, if the event contains it."""
    data: dict[str, Any] | None = None
    """The event itself, if it repeats a long text: it holds no text of its own."""

    @property
    def body(self) -> bytes:
        """The event's JSON, encoded once for all readers."""
        if self.encoded is None:
            self.encoded = self.encode()
        return self.encoded

    def encode(self) -> bytes:
        """Return the event's JSON, and do not keep it."""
        value: Any = self.data if self.data is not None else self.delta
        if self.facts is not None:
            value = {"type": self.type, "sequence_number": self.number}
            value["response"] = response_value(self.facts)
        return _encode(value)


def journal_events(events: Iterable[StreamEvent]) -> list[JournalEvent]:
    """Return events as a journal stores them."""
    return [
        # Most were encoded for a reader before: avoid the call of the property for them.
        JournalEvent(
            event.type, event.status.encode() if event.status else event.encoded or event.body
        )
        for event in events
    ]


def number_event(
    kind: str, number: int, data: dict[str, Any], *, is_long: bool = False
) -> StreamEvent:
    """Return an event of a model with its number.

    The end of a long text repeats it: such an event is not encoded before it is read.
    """
    value = {"type": kind, "sequence_number": number, **data}
    # The model's event may have these fields too: overwrite them.
    value["type"], value["sequence_number"] = kind, number
    if is_long and kind.endswith(".done"):
        return StreamEvent(kind, number, None, size=RESPONSE_BYTES, data=value)
    body = _encode(value)
    return StreamEvent(kind, number, body, size=len(body))


def split_deltas(events: Sequence[Any]) -> list[Any]:
    """Return events with each long delta as several; log probabilities stay with the first."""
    parts: list[Any] = []
    for event in events:
        if not isinstance(event, Delta):
            parts.append(event)
            continue
        text, step = event.delta, DELTA_CHARACTERS
        first = replace(event, delta=text[:step])
        more = [] if isinstance(event.logprobs, list) else event.logprobs
        parts.append(first)
        parts += [
            replace(first, delta=text[start : start + step], logprobs=more,
                    obfuscation=msgspec.UNSET)
            for start in range(step, len(text), step)
        ]  # fmt: skip
    return parts


def response_event(kind: str, number: int, facts: ResponseFacts) -> StreamEvent:
    """Return an event that contains the response described by `facts`."""
    size = RESPONSE_BYTES + sum(map(len, facts.output))
    if facts.request.fields:
        size += sum(map(len, facts.request.fields.values()))
    return StreamEvent(kind, number, None, facts.status, None, size, facts)


def lifecycle_event(
    kind: str, number: int, facts: ResponseFacts, status: ResponseStatus
) -> StreamEvent:
    """Return an event that shows the response before it had an answer."""
    before = replace(facts, status=status, output=(), answer=None, error=None)
    return response_event(kind, number, before)


def terminal_event(number: int, facts: ResponseFacts) -> StreamEvent:
    """Return the event that ends the stream of a response that has ended."""
    return response_event(TERMINAL[facts.status], number, facts)


def restore_event(kept: JournalEvent, number: int, facts: ResponseFacts) -> StreamEvent:
    """Return an event of a journal as it was originally sent."""
    if kept.type not in LIFECYCLE:
        return StreamEvent(kept.type, number, kept.body, size=len(kept.body))
    status = msgspec.convert(kept.body.decode(), ResponseStatus)
    return lifecycle_event(kept.type, number, facts, status)


def prologue(facts: ResponseFacts) -> list[StreamEvent]:
    """Return the first events of every background stream; they are not in its journal."""
    return [
        lifecycle_event(CREATED, 0, facts, "queued"),
        lifecycle_event(QUEUED, 1, facts, "queued"),
    ]


def rebuild_events(facts: ResponseFacts) -> list[StreamEvent]:
    """Return the events that a response without a journal would have had, without the last one."""
    events = prologue(facts) if facts.request.is_background else []
    if not events:
        events.append(lifecycle_event(CREATED, 0, facts, "in_progress"))
    events.append(lifecycle_event(IN_PROGRESS, len(events), facts, "in_progress"))
    for index, body in enumerate(facts.output):
        for kind, data in item_events(index, msgspec.json.decode(body)):
            events.append(number_event(kind, len(events), data))
    return events


def item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events in which a finished item would have been streamed."""
    kind = item.get("type")
    parts = item.get("content") if kind == "message" else None
    parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if kind == "mcp_call":
        yield from _mcp_call_events(index, item)
        return
    if kind == "mcp_approval_request":
        yield "response.output_item.added", {"output_index": index, "item": item}
        yield "response.output_item.done", {"output_index": index, "item": item}
        return
    added = {**item, "status": "in_progress"}
    if parts:
        added["content"] = []
    if kind == "function_call":
        added["arguments"] = ""
    yield "response.output_item.added", {"output_index": index, "item": added}
    at = {"item_id": item.get("id"), "output_index": index}
    for place, part in enumerate(parts):
        yield from _part_events({**at, "content_index": place}, part)
    if kind == "function_call":
        arguments = item.get("arguments", "")
        yield "response.function_call_arguments.delta", {**at, "delta": arguments}
        yield (
            "response.function_call_arguments.done",
            {**at, "name": item.get("name"), "arguments": arguments},
        )
    yield "response.output_item.done", {"output_index": index, "item": item}


def _mcp_call_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"item_id": item.get("id"), "output_index": index}
    arguments = item.get("arguments", "")
    begun = {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.mcp_call.in_progress", at
    yield "response.mcp_call_arguments.delta", {**at, "delta": arguments}
    yield "response.mcp_call_arguments.done", {**at, "arguments": arguments}
    yield f"response.mcp_call.{'failed' if item.get('error') else 'completed'}", at
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part_events(at: dict[str, Any], part: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    field = "refusal" if part.get("type") == "refusal" else "text"
    name = "refusal" if field == "refusal" else "output_text"
    more: dict[str, Any] = {} if field == "refusal" else {"logprobs": []}
    text = part.get(field)
    text = text if isinstance(text, str) else ""
    return (
        ("response.content_part.added", {**at, "part": {**part, field: ""}}),
        (f"response.{name}.delta", {**at, "delta": text, **more}),
        (f"response.{name}.done", {**at, field: text, **more}),
        ("response.content_part.done", {**at, "part": part}),
    )
