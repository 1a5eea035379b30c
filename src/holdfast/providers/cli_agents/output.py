"""Collect the output and tool calls of an agent's turn, and stream them as they arrive."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.projection.normalize import AGENT_TOOL_CALL
from holdfast.ports.provider import AnyEvent, EventSink
from holdfast.providers.items.ids import NewId
from holdfast.providers.items.response_events import ReasoningPart, TextPart, event

MAX_TOOL_BYTES = 64 * 1024
"""How many bytes of a tool's arguments and output are kept in total."""
_CUT = "… (shortened)"


class AgentOutput:
    """The output of one turn: finished items, and the part in progress."""

    def __init__(self, new_id: NewId, sink: EventSink | None) -> None:
        self._new_id = new_id
        self._sink = sink
        self._open: TextPart | ReasoningPart | None = None
        self._must_drain = False
        self.items: list[bytes] = []

    @property
    def has_text(self) -> bool:
        """Whether any message was written."""
        return any(b'"type":"message"' in item[:200] for item in self.items)

    def add_text(self, text: str) -> None:
        """Add text to the message in progress, or start one."""
        if not isinstance(self._open, TextPart):
            self.end_part()
            self._open = TextPart(self._new_id("msg"), len(self.items))
            self._write(self._open.begin())
        self._write(self._open.add(text, []))

    def add_reasoning(self, text: str) -> None:
        """Add text to the readable reasoning in progress, or start it."""
        if not isinstance(self._open, ReasoningPart):
            self.end_part()
            self._open = ReasoningPart(self._new_id("rs"), len(self.items))
            self._write(self._open.begin())
        self._write(self._open.add(text))

    def end_part(self) -> None:
        """End the message or the reasoning in progress."""
        part, self._open = self._open, None
        if isinstance(part, TextPart):
            events, item = part.end("completed", [])
        elif isinstance(part, ReasoningPart):
            events, item = part.end()
        else:
            return
        self._write(events)
        self.items.append(msgspec.json.encode(item))

    def add_tool_call(self, name: str, arguments: Any, output: str, *, failed: bool) -> None:
        """Add a call of one of the agent's own tools, with its result."""
        self.end_part()
        shown_arguments = (
            arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        )
        shown_arguments = _shorten(shown_arguments, MAX_TOOL_BYTES // 2)
        item = {
            "id": self._new_id("atc"),
            "type": AGENT_TOOL_CALL,
            "status": "failed" if failed else "completed",
            "name": _shorten(name, 200),
            "arguments": shown_arguments,
            "output": _shorten(output, MAX_TOOL_BYTES - len(shown_arguments.encode())),
        }
        index = len(self.items)
        begun = {**item, "status": "in_progress", "output": ""}
        self._write(
            [
                event("output_item.added", output_index=index, item=begun),
                event("output_item.done", output_index=index, item=item),
            ]
        )
        self.items.append(msgspec.json.encode(item))

    async def drain(self) -> None:
        """Wait until the client can receive more."""
        if self._must_drain and self._sink is not None:
            self._must_drain = False
            await self._sink.drain()

    def _write(self, events: Sequence[AnyEvent]) -> None:
        if self._sink is not None and not self._sink.write(events):
            self._must_drain = True


def _shorten(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    kept = max(limit - len(_CUT.encode()), 0)
    return encoded[:kept].decode("utf-8", "ignore") + _CUT
