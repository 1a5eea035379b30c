"""The events of items in the making, as the Responses API sends them: every step, in order."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, ModelEvent

Item = dict[str, Any]
Events = Sequence[AnyEvent]


def event(kind: str, **data: Any) -> ModelEvent:
    """Return one event of a response."""
    name = f"response.{kind}"
    return ModelEvent(name, {"type": name, **data})


class TextPart:
    """A message's one part, text or refusal, as it grows."""

    def __init__(self, item_id: str, index: int, kind: str = "output_text") -> None:
        self.item_id = item_id
        self.index = index
        self.kind = kind
        self._delta_type = f"response.{kind}.delta"
        self._texts: list[str] = []
        self._logprobs: list[Any] = []

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0}

    def _part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def begin(self) -> Events:
        """Return the events before its first word."""
        item = self._item("in_progress", [])
        return [
            event("output_item.added", output_index=self.index, item=item),
            event("content_part.added", **self._place, part=self._part("", [])),
        ]

    def grow(self, delta: str, logprobs: list[Any]) -> Events:
        """Return the event of some more words."""
        self._texts.append(delta)
        self._logprobs += logprobs
        said = Delta(
            type=self._delta_type,
            item_id=self.item_id,
            output_index=self.index,
            content_index=0,
            delta=delta,
        )
        if self.kind == "output_text":
            said.logprobs = logprobs
        return (said,)

    def end(self, status: str, annotations: list[Any]) -> tuple[Events, Item]:
        """Return the events after its last word, and the item."""
        text = "".join(self._texts)
        part = self._part(text, self._logprobs)
        if annotations and self.kind == "output_text":
            part["annotations"] = annotations
        item = self._item(status, [part])
        key = "refusal" if self.kind == "refusal" else "text"
        more = {"logprobs": self._logprobs} if self.kind == "output_text" else {}
        return [
            event(f"{self.kind}.done", **self._place, **{key: text}, **more),
            event("content_part.done", **self._place, part=part),
            event("output_item.done", output_index=self.index, item=item),
        ], item

    def _item(self, status: str, content: list[Any]) -> Item:
        return {
            "id": self.item_id, "type": "message", "status": status, "role": "assistant",
            "content": content,
        }  # fmt: skip


class ReasoningPart:
    """A model's open thoughts, as they grow."""

    def __init__(self, item_id: str, index: int) -> None:
        self.item_id = item_id
        self.index = index
        self._texts: list[str] = []

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0}

    def begin(self) -> Events:
        """Return the events before the first thought."""
        item: Item = {"id": self.item_id, "type": "reasoning", "summary": [], "content": []}
        part = {"type": "reasoning_text", "text": ""}
        return [
            event("output_item.added", output_index=self.index, item=item),
            event("content_part.added", **self._place, part=part),
        ]

    def grow(self, delta: str) -> Events:
        """Return the event of some more of it."""
        self._texts.append(delta)
        return [Delta(
            type="response.reasoning_text.delta", item_id=self.item_id, output_index=self.index,
            content_index=0, delta=delta,
        )]  # fmt: skip

    def end(self) -> tuple[Events, Item]:
        """Return the events after the last thought, and the item."""
        text = "".join(self._texts)
        part = {"type": "reasoning_text", "text": text}
        item: Item = {"id": self.item_id, "type": "reasoning", "summary": [], "content": [part]}
        return [
            event("reasoning_text.done", **self._place, text=text),
            event("content_part.done", **self._place, part=part),
            event("output_item.done", output_index=self.index, item=item),
        ], item


class CallPart:
    """A call, as its arguments grow; `is_custom` calls take plain text."""

    def __init__(self, item_id: str, index: int, call_id: str, *, is_custom: bool = False) -> None:
        self.item_id = item_id
        self.index = index
        self.call_id = call_id
        self.is_custom = is_custom
        self.name = ""
        self._texts: list[str] = []
        self._kind = "custom_tool_call_input" if is_custom else "function_call_arguments"
        self._field = "input" if is_custom else "arguments"

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index}

    def begin(self) -> Events:
        """Return the event before the first argument."""
        item = self._item("in_progress", "")
        return [event("output_item.added", output_index=self.index, item=item)]

    def grow(self, delta: str) -> Events:
        """Return the event of some more arguments."""
        self._texts.append(delta)
        return [Delta(
            type=f"response.{self._kind}.delta", item_id=self.item_id, output_index=self.index,
            delta=delta,
        )]  # fmt: skip

    def end(self, status: str) -> tuple[Events, Item]:
        """Return the events after the last argument, and the item."""
        text = "".join(self._texts)
        item = self._item(status, text)
        done = {**self._place, self._field: text, "name": self.name}
        return [
            event(f"{self._kind}.done", **done),
            event("output_item.done", output_index=self.index, item=item),
        ], item

    def _item(self, status: str, text: str) -> Item:
        return {
            "id": self.item_id,
            "type": "custom_tool_call" if self.is_custom else "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            self._field: text,
        }
