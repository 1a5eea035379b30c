"""A compaction in a client's stream: its items come before those of the model."""

from collections.abc import Iterator, Sequence

from holdfast.core.model.items import item_value
from holdfast.ports.provider import AnyEvent, EventSink, ModelEvent, shift_output_index


def compaction_events(body: bytes, index: int, *, is_sampled: bool = False) -> Iterator[ModelEvent]:
    """Yield the stream events of a compaction item."""
    item = item_value(body)
    place = {"output_index": index}
    added = {**item, "encrypted_content": ""}
    yield ModelEvent("response.output_item.added", {**place, "item": added})
    if is_sampled:
        yield ModelEvent("response.compaction.compacting", {**place, "item_id": item["id"]})
    yield ModelEvent("response.output_item.done", {**place, "item": item})


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
