"""A model's stream, some of whose calls the gateway runs.

Clients see such a call as one `mcp_call` item: it begins with the model's call, and it is done once
the output of the tool is committed. A call that needs an approval is shown as an approval request,
after its commit.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.core.model.gateway_items import (
    GatewayCall,
    GatewayCompletion,
    ToolList,
    approval_request,
    begun_mcp_call,
    mcp_call,
    mcp_list_tools,
)
from holdfast.core.openai.stream_events import Delta
from holdfast.ports.provider import AnyEvent, EventSink, ModelEvent, shift_output_index
from holdfast.ports.tools import Tool

_ADDED = "response.output_item.added"
_DONE = "response.output_item.done"
_ARGUMENTS = "response.function_call_arguments."


class ToolSink:
    """The event sink of one model call of a turn with tools."""

    def __init__(
        self,
        sink: EventSink,
        find_tool: Callable[[str], Tool | None],
        *,
        offset: int,
        new_id: Callable[[str], str],
    ) -> None:
        self._sink = sink
        self._find_tool = find_tool
        self._offset = offset
        self._new_id = new_id
        self._hidden: set[int] = set()
        """Indexes of calls whose events are hidden from clients."""
        self.item_ids: dict[int, str] = {}
        """The ids under which calls are shown, by their index in the model's answer."""
        self.has_output = False
        self.drain = sink.drain

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Write events; calls of the gateway's tools become `mcp_call` items."""
        if events:
            self.has_output = True
        return self._sink.write([shown for event in events for shown in self._translate(event)])

    def _translate(self, event: AnyEvent) -> Iterable[AnyEvent]:
        if isinstance(event, Delta):
            index: Any = event.output_index
        else:
            index = event.data.get("output_index")
            if event.type in (_ADDED, _DONE) and isinstance(index, int):
                item = event.data.get("item")
                tool = self._tool_of(item)
                if tool is not None and isinstance(item, dict):
                    return self._call_event(event.type, index, item, tool)
        if not isinstance(index, int):
            return (event,)
        if event.type.startswith(_ARGUMENTS):
            if index in self._hidden:
                return ()
            if index in self.item_ids:
                return (self._arguments_event(event, index),)
        return (shift_output_index(event, self._offset),)

    def _tool_of(self, item: Any) -> Tool | None:
        if not isinstance(item, dict) or item.get("type") != "function_call":
            return None
        name = item.get("name")
        return self._find_tool(name) if isinstance(name, str) else None

    def _call_event(
        self, kind: str, index: int, item: dict[str, Any], tool: Tool
    ) -> Iterable[AnyEvent]:
        """Return the events that begin a call; its end is shown after its output is committed."""
        if kind == _DONE or index in self.item_ids or index in self._hidden:
            return ()
        if tool.needs_approval:
            self._hidden.add(index)
            return ()
        item_id = self.item_ids[index] = self._new_id("mcp")
        call = GatewayCall(
            id=item_id,
            item_id=item_id,
            call_id=str(item.get("call_id") or item_id),
            function=tool.function,
            server_label=tool.server_label,
            name=tool.name,
            arguments="",
        )
        return begin_events(call, self._offset + index)

    def _arguments_event(self, event: AnyEvent, index: int) -> ModelEvent:
        stage = event.type.removeprefix(_ARGUMENTS)
        place = {"item_id": self.item_ids[index], "output_index": self._offset + index}
        if isinstance(event, Delta):
            return ModelEvent(
                f"response.mcp_call_arguments.{stage}", {**place, "delta": event.delta}
            )
        fields = event.data.items()
        text = {name: value for name, value in fields if name in ("delta", "arguments")}
        return ModelEvent(f"response.mcp_call_arguments.{stage}", {**place, **text})


def begin_events(call: GatewayCall, index: int) -> list[AnyEvent]:
    """Return the events with which an `mcp_call` begins."""
    place = {"output_index": index}
    return [
        ModelEvent(_ADDED, {**place, "item": begun_mcp_call(call)}),
        ModelEvent("response.mcp_call.in_progress", {**place, "item_id": call.item_id}),
    ]


def end_events(completion: GatewayCompletion, index: int) -> list[AnyEvent]:
    """Return the events with which an `mcp_call` ends."""
    place = {"output_index": index}
    state = "failed" if completion.error else "completed"
    return [
        ModelEvent(f"response.mcp_call.{state}", {**place, "item_id": completion.id}),
        ModelEvent(_DONE, {**place, "item": mcp_call(completion)}),
    ]


def request_events(call: GatewayCall, index: int) -> list[AnyEvent]:
    """Return the events that show an approval request."""
    item = {"output_index": index, "item": approval_request(call)}
    return [ModelEvent(_ADDED, item), ModelEvent(_DONE, item)]


def list_events(listed: ToolList, index: int) -> list[AnyEvent]:
    """Return the events that show the tools of a server."""
    place, item = {"output_index": index}, mcp_list_tools(listed)
    named = {**place, "item_id": listed.id}
    state = "failed" if listed.error else "completed"
    return [
        ModelEvent(_ADDED, {**place, "item": {**item, "tools": []}}),
        ModelEvent("response.mcp_list_tools.in_progress", named),
        ModelEvent(f"response.mcp_list_tools.{state}", named),
        ModelEvent(_DONE, {**place, "item": item}),
    ]
