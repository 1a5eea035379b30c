"""The output of a stream so far: finished items, and the text of unfinished ones."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

import msgspec

from holdfast.core.model.items import NewItem, write_item
from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, ModelEvent

_encode = msgspec.json.Encoder().encode
_TEXT_DELTAS = frozenset({"response.output_text.delta", "response.refusal.delta"})


class PartialOutput:
    """Accumulates a stream's events, so that the output survives if the stream breaks off."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, Any]] = {}
        # StringIO: millions of small strings would take ten times as much memory as their text.
        self._texts: dict[int, dict[str, StringIO]] = {}
        self._finished: dict[int, bytes] = {}
        self.has_changed = False
        """Whether there is new output since the last checkpoint."""
        self.next_index = 0

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Accumulate events."""
        texts = self._texts
        for event in events:
            if not isinstance(event, Delta):
                self._add_event(event)
                continue
            kind, parts = event.type, texts.get(event.output_index)
            if parts is not None and kind in parts:
                # Nearly every event continues a text, so it is added without a further call.
                parts[kind].write(event.delta)
                self.has_changed = True
            elif kind in _TEXT_DELTAS:
                self._add_text(event.output_index, kind, event.delta)

    def _add_text(self, index: int, kind: str, text: str) -> None:
        parts = self._texts.setdefault(index, {})
        if kind not in parts:
            parts[kind] = StringIO()
        parts[kind].write(text)
        self.has_changed = True

    def _add_event(self, event: ModelEvent) -> None:
        data = event.data
        index = data.get("output_index", 0)
        if event.type.startswith("response.output_item."):
            self.next_index = max(self.next_index, index + 1)
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                if isinstance(text := data.get("delta"), str):
                    self._add_text(index, event.type, text)
            case "response.output_item.added":
                self._open[index] = data.get("item", {})
            case "response.output_item.done":
                self._finished[index] = _encode(data.get("item", {}))
                self._open.pop(index, None)
                self._texts.pop(index, None)
                self.has_changed = True

    def finished(self) -> list[bytes]:
        """Return the finished items, in order."""
        return [self._finished[index] for index in sorted(self._finished)]

    def unfinished(self) -> tuple[NewItem, ...]:
        """Return the messages in progress, as incomplete items."""
        return tuple(
            write_item(self._incomplete(index))
            for index, texts in sorted(self._texts.items())
            if texts
        )

    def open_items(self) -> list[tuple[int, dict[str, Any]]]:
        """Return every unfinished item with its index, as if the stream ended here."""
        indexes = sorted({*self._open, *self._texts})
        return [(index, self._incomplete(index)) for index in indexes]

    def _incomplete(self, index: int) -> dict[str, Any]:
        item = {**self._open.get(index, {}), "status": "incomplete"}
        if index in self._texts:
            parts = [_part(kind, text.getvalue()) for kind, text in self._texts[index].items()]
            item.update({"type": "message", "role": "assistant", "content": parts})
        return item

    def checkpoint(self) -> tuple[NewItem, ...]:
        """Return all output so far, to be stored in case of a crash."""
        self.has_changed = False
        finished = tuple(write_item(msgspec.json.decode(body)) for body in self.finished())
        return (*finished, *self.unfinished())


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "response.refusal.delta":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": []}
