"""A stream that goes on after its worker died: the same numbers, what was torn off closed."""

import msgspec

from holdfast.core.openai.response import ResponseFacts
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.streaming.partial_output import PartialOutput
from holdfast.engine.streaming.response_records import ResponseRecords
from holdfast.ports.provider import ModelEvent
from holdfast.ports.store import ResponseView


async def resume_live(
    recorded: ResponseRecords, view: ResponseView | None, begun: ResponseFacts
) -> LiveResponse:
    """Return a live response that continues the journal of an earlier attempt.

    Items that the attempt left open are closed as incomplete; new ones get output indexes of
    their own, so that nobody joins the text of two attempts.
    """
    torn = PartialOutput()
    last = -1
    while view is not None:
        events = await recorded.events(view, begun, last)
        if not events:
            break
        torn.see([ModelEvent(one.type, msgspec.json.decode(one.body)) for one in events])
        last = events[-1].number
    if last < 0:
        live = LiveResponse(begun)
        live.open("queued")
        return live
    live = LiveResponse(begun, first=last + 1)
    live.publish(_closing(torn))
    live.shift_indexes(torn.next_index)
    return live


def _closing(torn: PartialOutput) -> list[ModelEvent]:
    events: list[ModelEvent] = []
    for index, item in torn.open_items():
        at = {"item_id": item.get("id"), "output_index": index, "content_index": 0}
        if item.get("type") == "message" and item.get("content"):
            part = item["content"][0]
            text = {**at, "text": part["text"], "logprobs": []}
            events.append(ModelEvent("response.output_text.done", text))
            events.append(ModelEvent("response.content_part.done", {**at, "part": part}))
        done = {"output_index": index, "item": item}
        events.append(ModelEvent("response.output_item.done", done))
    return events
