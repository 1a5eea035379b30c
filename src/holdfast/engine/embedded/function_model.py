"""A plain async function as a model: the provider of the Python API."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.core.model.items import item_value
from holdfast.engine.embedded.validation import as_items
from holdfast.ports.provider import Answer, EventSink, ModelCall

Function = Callable[[list[dict[str, Any]]], Awaitable[Any]]


class FunctionModel:
    """Calls a function; see `ports.provider.Provider`."""

    name = "function"

    state_use = None
    detect = None

    def __init__(self, function: Function) -> None:
        self._function = function

    def check(self, call: ModelCall) -> None:
        """Accept any call."""

    async def answer(self, call: ModelCall) -> Answer:
        """Return the function's result; instructions are passed as a developer message."""
        items = [item_value(body) for body in call.items]
        instructions = call.fields.get("instructions")
        if instructions is not None:
            text = item_value(b'{"text":' + bytes(instructions) + b"}")["text"]
            items.insert(0, {"type": "message", "role": "developer", "content": text})
        output = await self._function(items)
        return Answer(items=[item.body for item in as_items(output, "assistant")])

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:  # noqa: ARG002 - silent
        """Return the whole answer."""
        return await self.answer(call)

    async def models(self) -> list[dict[str, Any]]:
        """Return no models."""
        return []

    async def close(self) -> None:
        """Do nothing."""
