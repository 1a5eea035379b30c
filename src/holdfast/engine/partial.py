"""What a stream has said so far: items it finished, and the text of those it has not."""

from typing import Any

import msgspec

from holdfast.core.items import NewItem, write_item
from holdfast.ports.provider import ModelEvent

_encode = msgspec.json.Encoder().encode


class PartialOutput:
    """Follows a stream's events; holds what must not be lost if it breaks off."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, list[str]] = {}
        self._finished: dict[int, bytes] = {}
        self.has_news = False

    def see(self, event: ModelEvent) -> None:
        """Take in one event."""
        data = event.data
        index = data.get("output_index", 0)
        match event.type:
            case "response.output_text.delta":
                self._texts.setdefault(index, []).append(data.get("delta", ""))
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
            write_item(
                {
                    **{k: v for k, v in self._open.get(index, {}).items() if k != "content"},
                    "type": "message",
                    "role": "assistant",
                    "status": "incomplete",
                    "content": [{"type": "output_text", "text": "".join(texts), "annotations": []}],
                }
            )
            for index, texts in sorted(self._texts.items())
            if texts
        )

    def take(self) -> tuple[NewItem, ...]:
        """Return everything so far, to be remembered in case of a crash."""
        self.has_news = False
        done = tuple(write_item(msgspec.json.decode(body)) for body in self.finished())
        return (*done, *self.items())
