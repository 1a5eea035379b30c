"""A response's stream: its events as they go out, and those that the record alone can tell.

Every event has a number, without gaps. The first ones and the last one show the response itself,
so they are written from what is recorded of it; what lies between comes from the model.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.openai.event_batches import JournalEvent
from holdfast.core.openai.response import ResponseFacts, ResponseStatus, response_value

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

_encode = msgspec.json.Encoder().encode


class Delta(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A model's most frequent event, some more of a text: its words, their place, nothing else.

    Read and written by its fields; an event with any other, or values of other kinds, is none.
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


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """One event as it goes out: its JSON, number included.

    `status` is set where the event shows the response: it is all that a journal keeps of it.
    """

    type: str
    number: int
    body: bytes
    status: ResponseStatus | None = None

    def kept(self) -> JournalEvent:
        """Return the event as a journal keeps it."""
        return JournalEvent(self.type, self.status.encode() if self.status else self.body)


def model_event(kind: str, number: int, data: dict[str, Any]) -> StreamEvent:
    """Number an event of a model."""
    value = {"type": kind, "sequence_number": number, **data}
    # Whatever the model's own event says of these, they are ours.
    value["type"], value["sequence_number"] = kind, number
    body = _encode(value)
    return StreamEvent(kind, number, body)


def numbered(delta: Delta, number: int) -> StreamEvent:
    """Number some more of a text; the number that its server gave it is gone."""
    delta.sequence_number = number
    return StreamEvent(delta.type, number, _encode(delta))


def shown(kind: str, number: int, facts: ResponseFacts) -> StreamEvent:
    """Return the event that shows the response as it is in `facts`."""
    value = {"type": kind, "sequence_number": number, "response": response_value(facts)}
    return StreamEvent(kind, number, _encode(value), facts.status)


def begun(kind: str, number: int, facts: ResponseFacts, status: ResponseStatus) -> StreamEvent:
    """Return an event from before there was an answer."""
    before = replace(facts, status=status, output=(), answer=None, error=None)
    return shown(kind, number, before)


def terminal(number: int, facts: ResponseFacts) -> StreamEvent:
    """Return the event that ends the stream of a response that has ended."""
    return shown(TERMINAL[facts.status], number, facts)


def recall(kept: JournalEvent, number: int, facts: ResponseFacts) -> StreamEvent:
    """Return an event of a journal as it went out."""
    if kept.type not in LIFECYCLE:
        return StreamEvent(kept.type, number, kept.body)
    status = msgspec.convert(kept.body.decode(), ResponseStatus)
    return begun(kept.type, number, facts, status)


def prologue(facts: ResponseFacts) -> list[StreamEvent]:
    """Return how every background stream begins: it can be told before anything is written."""
    return [begun(CREATED, 0, facts, "queued"), begun(QUEUED, 1, facts, "queued")]


def retold(facts: ResponseFacts) -> list[StreamEvent]:
    """Return the stream that a response without a journal would have had, but for its end."""
    events = prologue(facts) if facts.request.is_background else []
    if not events:
        events.append(begun(CREATED, 0, facts, "in_progress"))
    events.append(begun(IN_PROGRESS, len(events), facts, "in_progress"))
    for index, body in enumerate(facts.output):
        for kind, data in item_events(index, msgspec.json.decode(body)):
            events.append(model_event(kind, len(events), data))
    return events


def item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events that an item, which is there as a whole, would have come in."""
    kind = item.get("type")
    parts = item.get("content") if kind == "message" else None
    parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    begun_item = {**item, "status": "in_progress"}
    if parts:
        begun_item["content"] = []
    if kind == "function_call":
        begun_item["arguments"] = ""
    yield "response.output_item.added", {"output_index": index, "item": begun_item}
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
