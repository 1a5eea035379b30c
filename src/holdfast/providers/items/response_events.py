"""Build the events of items in progress as the Responses API sends them, in order."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

import msgspec

from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, ModelEvent

Item = dict[str, Any]
Events = Sequence[AnyEvent]


def event(kind: str, **data: Any) -> ModelEvent:
    """Return one event of a response."""
    name = f"response.{kind}"
    return ModelEvent(name, {"type": name, **data})


class TextPart:
    """The only part of a message in progress: text or refusal."""

    def __init__(self, item_id: str, index: int, kind: str = "output_text") -> None:
        self.item_id = item_id
        self.index = index
        self.kind = kind
        self.delta_type = f"response.{kind}.delta"
        self.text = StringIO()
        self.logprobs: list[Any] = []
        self._position = {"item_id": item_id, "output_index": index, "content_index": 0}

    def _part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def begin(self) -> Events:
        """Return the events before the first text."""
        item_added, part_added = "response.output_item.added", "response.content_part.added"
        item, part = self._item("in_progress", []), self._part("", [])
        return [
            ModelEvent(item_added, {"type": item_added, "output_index": self.index, "item": item}),
            ModelEvent(part_added, {"type": part_added, **self._position, "part": part}),
        ]

    def add(self, delta: str, logprobs: list[Any]) -> Events:
        """Return the event for more text."""
        self.text.write(delta)
        self.logprobs += logprobs
        text_delta = Delta(
            type=self.delta_type,
            item_id=self.item_id,
            output_index=self.index,
            content_index=0,
            delta=delta,
        )
        if self.kind == "output_text":
            text_delta.logprobs = logprobs
        return (text_delta,)

    def end(self, status: str, annotations: list[Any]) -> tuple[Events, Item]:
        """Return the events after the last text, and the item."""
        text = self.text.getvalue()
        part = self._part(text, self.logprobs)
        if annotations and self.kind == "output_text":
            part["annotations"] = annotations
        item = self._item(status, [part])
        key = "refusal" if self.kind == "refusal" else "text"
        extra = {"logprobs": self.logprobs} if self.kind == "output_text" else {}
        text_done, part_done = f"response.{self.kind}.done", "response.content_part.done"
        done = "response.output_item.done"
        return [
            ModelEvent(text_done, {"type": text_done, **self._position, key: text, **extra}),
            ModelEvent(part_done, {"type": part_done, **self._position, "part": part}),
            ModelEvent(done, {"type": done, "output_index": self.index, "item": item}),
        ], item

    def _item(self, status: str, content: list[Any]) -> Item:
        return {
            "id": self.item_id, "type": "message", "status": status, "role": "assistant",
            "content": content,
        }  # fmt: skip


class ReasoningPart:
    """The readable reasoning of a model, in progress."""

    def __init__(self, item_id: str, index: int) -> None:
        self.item_id = item_id
        self.index = index
        self._text = StringIO()

    @property
    def _position(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0}

    def begin(self) -> Events:
        """Return the events before the first text."""
        item: Item = {"id": self.item_id, "type": "reasoning", "summary": [], "content": []}
        part = {"type": "reasoning_text", "text": ""}
        return [
            event("output_item.added", output_index=self.index, item=item),
            event("content_part.added", **self._position, part=part),
        ]

    def add(self, delta: str) -> Events:
        """Return the event for more text."""
        self._text.write(delta)
        return [Delta(
            type="response.reasoning_text.delta", item_id=self.item_id, output_index=self.index,
            content_index=0, delta=delta,
        )]  # fmt: skip

    def end(self) -> tuple[Events, Item]:
        """Return the events after the last text, and the item."""
        text = self._text.getvalue()
        part = {"type": "reasoning_text", "text": text}
        item: Item = {"id": self.item_id, "type": "reasoning", "summary": [], "content": [part]}
        return [
            event("reasoning_text.done", **self._position, text=text),
            event("content_part.done", **self._position, part=part),
            event("output_item.done", output_index=self.index, item=item),
        ], item


class CallPart:
    """A tool call in progress; a custom call takes plain text instead of JSON arguments."""

    def __init__(self, item_id: str, index: int, call_id: str, *, is_custom: bool = False) -> None:
        self.item_id = item_id
        self.index = index
        self.call_id = call_id
        self.is_custom = is_custom
        self.name = ""
        self.namespace: str | None = None
        self.server_id: Any = None
        """The call's id at the server."""
        self.server_name = ""
        """The tool's name at the server, which has no namespaces."""
        self.held: list[AnyEvent] = []
        """Events that wait for the end of the calls before this one."""
        self._text = StringIO()
        self._kind = "custom_tool_call_input" if is_custom else "function_call_arguments"
        self._field = "input" if is_custom else "arguments"

    @property
    def _position(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.index}

    @property
    def has_whole_arguments(self) -> bool:
        """Whether the arguments so far are a complete JSON value."""
        try:
            msgspec.json.decode(self._text.getvalue())
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return False
        return True

    @property
    def is_whole(self) -> bool:
        """Whether nothing can follow: the arguments so far are a JSON object."""
        is_object = self._text.getvalue().rstrip().endswith("}") and not self.is_custom
        return bool(self.name) and is_object and self.has_whole_arguments

    def begin(self) -> Events:
        """Return the event before the first argument."""
        item = self._item("in_progress", "")
        return [event("output_item.added", output_index=self.index, item=item)]

    def add(self, delta: str) -> Events:
        """Return the event for more arguments."""
        self._text.write(delta)
        return [Delta(
            type=f"response.{self._kind}.delta", item_id=self.item_id, output_index=self.index,
            delta=delta,
        )]  # fmt: skip

    def end(self, status: str) -> tuple[Events, Item]:
        """Return the events after the last argument, and the item."""
        text = self._text.getvalue()
        item = self._item(status, text)
        done = {**self._position, self._field: text, "name": self.name}
        return [
            event(f"{self._kind}.done", **done),
            event("output_item.done", output_index=self.index, item=item),
        ], item

    def _item(self, status: str, text: str) -> Item:
        namespace = {"namespace": self.namespace} if self.namespace is not None else {}
        return {
            "id": self.item_id,
            "type": "custom_tool_call" if self.is_custom else "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            **namespace,
            self._field: text,
        }
