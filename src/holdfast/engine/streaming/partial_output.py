"""What a stream has said so far: items it finished, and the text of those it has not."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.items import NewItem, write_item
from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, ModelEvent

_encode = msgspec.json.Encoder().encode
_TEXTS = frozenset({"response.output_text.delta", "response.refusal.delta"})


class PartialOutput:
    """Follows a stream's events; holds what must not be lost if it breaks off."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[str, list[str]]] = {}
        self._finished: dict[int, bytes] = {}
        self.has_news = False
        self.next_index = 0
        self.has_output = False
        """Whether anything has been said at all."""

    def see(self, events: Sequence[AnyEvent]) -> None:
        """Take in the events that came together."""
        for event in events:
            self.has_output = True
            if not isinstance(event, Delta):
                self._see(event)
            elif event.type in _TEXTS:
                parts = self._texts.setdefault(event.output_index, {})
                parts.setdefault(event.type, []).append(event.delta)
                self.has_news = True

    def _see(self, event: ModelEvent) -> None:
        data = event.data
        index = data.get("output_index", 0)
        if event.type.startswith("response.output_item."):
            self.next_index = max(self.next_index, index + 1)
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                parts = self._texts.setdefault(index, {})
                parts.setdefault(event.type, []).append(data.get("delta", ""))
                self.has_news = True
            case "response.output_item.added":
                self._open[index] = data.get("item", {})
            case "response.output_item.done":
                self._finished[index] = _encode(data.get("item", {}))
                self._open.pop(index, None)
                self._texts.pop(index, None)
                self.has_news = True

    def finished(self) -> list[bytes]:
        """Return the items that the model finished, in order."""
        return [self._finished[index] for index in sorted(self._finished)]

    def items(self) -> tuple[NewItem, ...]:
        """Return the messages that it did not finish, as incomplete items."""
        return tuple(
            write_item(self._incomplete(index))
            for index, texts in sorted(self._texts.items())
            if texts
        )

    def open_items(self) -> list[tuple[int, dict[str, Any]]]:
        """Return every item that was begun and not finished, as it would be if it ended here."""
        indexes = sorted({*self._open, *self._texts})
        return [(index, self._incomplete(index)) for index in indexes]

    def _incomplete(self, index: int) -> dict[str, Any]:
        item = {**self._open.get(index, {}), "status": "incomplete"}
        if index in self._texts:
            parts = [_part(kind, "".join(said)) for kind, said in self._texts[index].items()]
            item.update({"type": "message", "role": "assistant", "content": parts})
        return item

    def take(self) -> tuple[NewItem, ...]:
        """Return everything so far, to be remembered in case of a crash."""
        self.has_news = False
        done = tuple(write_item(msgspec.json.decode(body)) for body in self.finished())
        return (*done, *self.items())


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "response.refusal.delta":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": []}
