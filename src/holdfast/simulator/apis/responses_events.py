"""The events of a streamed response: the full sequence, numbered without gaps."""

from holdfast.simulator.apis.reply import words_of
from holdfast.simulator.faults.catalogue import OVERFLOW
from holdfast.simulator.state.call import StreamedEvent
from holdfast.simulator.state.json import Json

TERMINAL = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.cancelled",
}


class Sequence:
    """Events under construction; each gets the next number."""

    def __init__(self) -> None:
        self.events: list[StreamedEvent] = []

    def add(self, kind: str, *, is_terminal: bool = False, **fields: object) -> None:
        """Append one event."""
        data = {"type": kind, "sequence_number": len(self.events), **fields}
        self.events.append(StreamedEvent(kind, data, is_terminal))


def events_of(response: Json) -> list[StreamedEvent]:
    """Return every event of a finished response, from created to its end."""
    sequence = Sequence()
    status = response["status"]
    begun = _snapshot(response, "queued" if status == "queued" else "in_progress")
    sequence.add("response.created", response=begun)
    if status == "queued" or response["background"]:
        stays = status == "queued"
        queued = _snapshot(response, "queued")
        sequence.add("response.queued", is_terminal=stays, response=queued)
    if status == "queued":
        return sequence.events
    sequence.add("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        _add_item(sequence, index, item)
    sequence.add(TERMINAL[status], is_terminal=True, response=response)
    return sequence.events


def failing_events(response: Json, after: int, style: str) -> list[StreamedEvent]:
    """Return `after` events of the response, then its failure."""
    sequence = Sequence()
    sequence.events = events_of(response | {"status": "completed"})[:-1][:after]
    error = response["error"]
    if style == "error":
        sequence.add(
            "error", is_terminal=True, code=error["code"], message=error["message"], param=None
        )
    else:
        sequence.add("response.failed", is_terminal=True, response=response | {"output": []})
    return sequence.events


def cancelled_events(response: Json, after: int) -> list[StreamedEvent]:
    """Return `after` events of the response, then its cancellation."""
    sequence = Sequence()
    sequence.events = events_of(response)[:-1][:after]
    sequence.add("response.cancelled", is_terminal=True, response=response | {"output": []})
    return sequence.events


def overflow_events(response: Json) -> list[StreamedEvent]:
    """Return a stream that begins normally and then reports a context overflow (R11)."""
    sequence = Sequence()
    sequence.events = events_of(response)[:2]
    error = {
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "message": OVERFLOW,
        "param": "input",
    }
    sequence.add("error", is_terminal=True, error=error)
    return sequence.events


def _snapshot(response: Json, status: str) -> Json:
    early: Json = {
        "status": status,
        "output": [],
        "usage": None,
        "completed_at": None,
        "error": None,
    }
    return response | early | {"incomplete_details": None}


def _add_item(sequence: Sequence, index: int, item: Json) -> None:
    started = {"output_index": index, "item_id": item["id"]}
    sequence.add("response.output_item.added", output_index=index, item=_unfinished(item))
    match item["type"]:
        case "message":
            _add_part(sequence, started, item["content"][0])
        case "reasoning":
            _add_summary(sequence, started, item["summary"])
        case "function_call":
            _add_argument_deltas(
                sequence, started, "response.function_call_arguments", "arguments", item
            )
        case "custom_tool_call":
            _add_argument_deltas(
                sequence, started, "response.custom_tool_call_input", "input", item
            )
    sequence.add("response.output_item.done", output_index=index, item=item)


def _unfinished(item: Json) -> Json:
    begun: Json = {"status": "in_progress"} if "status" in item else {}
    if item["type"] == "message":
        begun["content"] = []
    if item["type"] == "function_call":
        begun["arguments"] = ""
    if item["type"] == "custom_tool_call":
        begun["input"] = ""
    if item["type"] == "reasoning":
        begun["summary"] = []
    return item | begun


def _add_part(sequence: Sequence, started: Json, part: Json) -> None:
    place = started | {"content_index": 0}
    is_text = part["type"] == "output_text"
    kind, key = ("output_text", "text") if is_text else ("refusal", "refusal")
    extra: Json = {"logprobs": []} if is_text else {}
    sequence.add("response.content_part.added", **place, part=part | {key: ""})
    for word in words_of(part[key]):
        sequence.add(f"response.{kind}.delta", **place, delta=word, **extra)
    sequence.add(f"response.{kind}.done", **place, **{key: part[key]}, **extra)
    sequence.add("response.content_part.done", **place, part=part)


def _add_summary(sequence: Sequence, started: Json, summary: list[Json]) -> None:
    for index, part in enumerate(summary):
        place = started | {"summary_index": index}
        empty = part | {"text": ""}
        sequence.add("response.reasoning_summary_part.added", **place, part=empty)
        for word in words_of(part["text"]):
            sequence.add("response.reasoning_summary_text.delta", **place, delta=word)
        sequence.add("response.reasoning_summary_text.done", **place, text=part["text"])
        sequence.add("response.reasoning_summary_part.done", **place, part=part)


def _add_argument_deltas(
    sequence: Sequence, started: Json, kind: str, key: str, item: Json
) -> None:
    text = item[key]
    for start in range(0, len(text), 8):
        sequence.add(f"{kind}.delta", **started, delta=text[start : start + 8])
    sequence.add(f"{kind}.done", **started, **{key: text}, name=item["name"])
