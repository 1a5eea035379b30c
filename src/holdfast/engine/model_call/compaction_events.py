"""A compaction in a client's stream: its items come before those of the model."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.model.items import item_value
from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, EventSink, ModelEvent


def compaction_events(body: bytes, index: int, *, is_sampled: bool = False) -> Iterator[ModelEvent]:
    """Yield the stream events of a compaction item."""
    item = item_value(body)
    place = {"output_index": index}
    added = {**item, "encrypted_content": ""}
    yield ModelEvent("response.output_item.added", {**place, "item": added})
    if is_sampled:
        yield ModelEvent("response.compaction.compacting", {**place, "item_id": item["id"]})
    yield ModelEvent("response.output_item.done", {**place, "item": item})


def shift_output_index(event: AnyEvent, by: int) -> AnyEvent:
    """Return a model's event with its output index moved by `by` items of the gateway."""
    if not by:
        return event
    if isinstance(event, Delta):
        return replace(event, output_index=event.output_index + by)
    index = event.data.get("output_index")
    if not isinstance(index, int):
        return event
    return replace(event, data={**event.data, "output_index": index + by})


class PrefacedSink:
    """An event sink that writes the preface of an answer before the model's first events."""

    def __init__(self, sink: EventSink, preface: Sequence[bytes]) -> None:
        self._sink = sink
        self._preface = preface
        self._is_begun = False
        self.drain = sink.drain

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Write events, with output indexes that follow the preface."""
        by = len(self._preface)
        self.begin()
        return self._sink.write([shift_output_index(event, by) for event in events])

    def begin(self) -> None:
        """Write the preface, once; a model may send no events at all."""
        if not self._is_begun:
            self._is_begun = True
            self._sink.write(
                [
                    event
                    for index, body in enumerate(self._preface)
                    for event in compaction_events(body, index)
                ]
            )
