"""Continue a stream after its worker died: event numbers go on, open items are closed."""

from collections.abc import Sequence

import msgspec

from holdfast.core.openai.response import ResponseFacts
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.streaming.partial_output import PartialOutput
from holdfast.engine.streaming.response_records import ResponseRecords
from holdfast.ports.provider import AnyEvent, ModelEvent, shift_output_index
from holdfast.ports.store import ResponseView


class ResumedResponse(LiveResponse):
    """A response whose first output indexes belong to an earlier attempt."""

    index_offset = 0

    def publish(self, events: Sequence[AnyEvent]) -> int:
        """Publish events of the model, with indexes behind those of the earlier attempt."""
        return super().publish([shift_output_index(event, self.index_offset) for event in events])


async def resume_live(
    records: ResponseRecords, view: ResponseView | None, facts: ResponseFacts
) -> LiveResponse:
    """Return a live response that continues the journal of an earlier attempt.

    Items that the attempt left open are closed as incomplete. New ones get new output indexes, so
    that no client mixes the text of two attempts.
    """
    partial = PartialOutput()
    last = -1
    while view is not None:
        events = await records.events(view, facts, last)
        if not events:
            break
        partial.add([ModelEvent(event.type, msgspec.json.decode(event.body)) for event in events])
        last = events[-1].number
    if last < 0:
        live = LiveResponse(facts)
        live.open("queued")
        return live
    resumed = ResumedResponse(facts, first=last + 1)
    resumed.publish(_closing_events(partial))
    resumed.index_offset = partial.next_index
    return resumed


def _closing_events(partial: PartialOutput) -> list[ModelEvent]:
    events: list[ModelEvent] = []
    for index, item in partial.open_items():
        at = {"item_id": item.get("id"), "output_index": index, "content_index": 0}
        if item.get("type") == "message" and item.get("content"):
            part = item["content"][0]
            text = {**at, "text": part["text"], "logprobs": []}
            events.append(ModelEvent("response.output_text.done", text))
            events.append(ModelEvent("response.content_part.done", {**at, "part": part}))
        done = {"output_index": index, "item": item}
        events.append(ModelEvent("response.output_item.done", done))
    return events
