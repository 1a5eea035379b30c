"""A plain async function as a model, for the Python front door, where others have servers."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.core.model.items import item_value
from holdfast.engine.embedded.validation import as_items
from holdfast.ports.provider import Answer, EventSink, ModelCall, StateUse

Function = Callable[[list[dict[str, Any]]], Awaitable[Any]]


class FunctionModel:
    """Asks a function; see `ports.provider.Provider`."""

    name = "function"

    def __init__(self, function: Function) -> None:
        self._function = function

    def check(self, call: ModelCall) -> None:
        """Anything may be asked."""

    def state_use(self, model: str) -> StateUse | None:
        """A function remembers nothing for us."""

    async def answer(self, call: ModelCall) -> Answer:
        """Return what the function says; instructions come to it as a developer's message."""
        items = [item_value(body) for body in call.items]
        told = call.fields.get("instructions")
        if told is not None:
            text = item_value(b'{"said":' + bytes(told) + b"}")["said"]
            items.insert(0, {"type": "message", "role": "developer", "content": text})
        said = await self._function(items)
        return Answer(items=[item.body for item in as_items(said, "assistant")])

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:  # noqa: ARG002 - silent
        """Return the whole answer."""
        return await self.answer(call)

    async def models(self) -> list[dict[str, Any]]:
        """It has no list."""
        return []

    async def close(self) -> None:
        """Nothing to let go of."""
