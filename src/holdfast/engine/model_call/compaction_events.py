"""Compaction told to the client that asked for it: an item before the model's, in its stream."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.model.items import item_value
from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, ModelEvent


def compaction_events(body: bytes, index: int, *, is_sampled: bool = False) -> Iterator[ModelEvent]:
    """Yield the events in which a stream tells of a compaction item."""
    item = item_value(body)
    place = {"output_index": index}
    begun = {**item, "encrypted_content": ""}
    yield ModelEvent("response.output_item.added", {**place, "item": begun})
    if is_sampled:
        yield ModelEvent("response.compaction.compacting", {**place, "item_id": item["id"]})
    yield ModelEvent("response.output_item.done", {**place, "item": item})


def preface_events(preface: Sequence[bytes]) -> list[AnyEvent]:
    """Return the events of the items that an answer begins with before the model speaks."""
    return [event for index, body in enumerate(preface) for event in compaction_events(body, index)]


def shift_output_index(event: AnyEvent, by: int) -> AnyEvent:
    """Return a model's event as one of an answer that began with so many items of ours."""
    if not by:
        return event
    if isinstance(event, Delta):
        return replace(event, output_index=event.output_index + by)
    index = event.data.get("output_index")
    if not isinstance(index, int):
        return event
    return replace(event, data={**event.data, "output_index": index + by})
