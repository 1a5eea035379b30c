"""A whole gateway in the test's own loop: memory store, scripted model, no sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.session import Usage
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.context.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextSettings, LaneSettings, StreamSettings
from holdfast.engine.turns.executor import TurnExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.app import Application
from holdfast.ports.provider import (
    Answer,
    EventSink,
    ModelCall,
    ModelEvent,
    ModelListing,
    Provider,
    RelayRequest,
    StateUse,
)
from holdfast.ports.store import ItemQuery, Store
from holdfast.stores.open import open_store

Item = dict[str, Any]
Script = Callable[[list[Item]], list[Item]]


def said(text: str) -> Item:
    """Return an assistant's message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part]}


def called(name: str, call_id: str, arguments: str = "{}") -> Item:
    """Return a function call."""
    return {
        "type": "function_call", "name": name, "call_id": call_id, "arguments": arguments,
        "status": "completed",
    }  # fmt: skip


def text_of(item: Item) -> str:
    """Return what an item says, for assertions that read like a conversation."""
    if item.get("type") == "function_call":
        return f"{item['name']}()"
    if str(item.get("type", "")).endswith("_output"):
        return f"={item['output']}"
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())


class ScriptedModel:
    """Answers by script, remembers what it was shown, and can be held at the door."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or (lambda items: [said(f"re:{text_of(items[-1])}")])
        self.calls: list[ModelCall] = []
        self.shown: list[list[str]] = []
        self.door = asyncio.Event()
        self.door.set()
        self.entered = asyncio.Semaphore(0)

    name = "scripted"

    def check(self, call: ModelCall) -> None:
        """Anything may be asked."""

    def state_use(self, model: str) -> StateUse | None:
        """Nothing is remembered here."""

    async def _answer(self, call: ModelCall) -> list[Item]:
        items = [msgspec.json.decode(body) for body in call.items]
        self.calls.append(call)
        self.shown.append([text_of(item) for item in items])
        self.entered.release()
        await self.door.wait()
        return self.script(items)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the scripted answer."""
        items = await self._answer(call)
        return Answer(
            items=[msgspec.json.encode(item) for item in items],
            usage=Usage(input_tokens=len(call.items), output_tokens=len(items)),
        )

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Stream the scripted answer, a word at a time."""
        answer = await self.answer(call)
        for index, body in enumerate(answer.items):
            item = msgspec.json.decode(body)
            begun = {"output_index": index, "item": {**item, "content": []}}
            sink.write([ModelEvent("response.output_item.added", begun)])
            if item["type"] == "message":
                for word in text_of(item).split(" "):
                    at = {"output_index": index, "content_index": 0, "item_id": item.get("id")}
                    said = {**at, "delta": word}
                    if not sink.write([ModelEvent("response.output_text.delta", said)]):
                        await sink.drain()
            done = {"output_index": index, "item": item}
            sink.write([ModelEvent("response.output_item.done", done)])
        return answer

    async def models(self) -> list[dict[str, Any]]:
        """Return the one model there is."""
        return [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]

    async def close(self) -> None:
        """Nothing to let go of."""


class OnlyModel:
    """Upstreams of which there is one, in this process."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def provider(self, model: str) -> Provider:
        """Return the one there is."""
        return self._model

    def upstream_api(self, model: str) -> None:
        """There is no server."""

    def dropped_tools(self, model: str, fields: Mapping[str, msgspec.Raw]) -> Sequence[str]:
        """Return none."""
        return ()

    async def models(self) -> ModelListing:
        """Return its models."""
        return ModelListing(await self._model.models())

    async def relay(self, request: RelayRequest) -> None:
        """There is nobody to pass it on to."""


class House:
    """An application, its parts, and a client."""

    def __init__(
        self, application: Application, gateway: Gateway, desk: TurnService, model: ScriptedModel
    ) -> None:
        self.application = application
        self.desk = desk
        self.gateway = gateway
        self.model = model
        transport = httpx.ASGITransport(application)  # type: ignore[arg-type]  # scope is a dict
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def chat(
        self, messages: list[Item], key: str | None = "k", **more: Any
    ) -> httpx.Response:
        """Post a chat completion."""
        headers = {"X-Session-Key": key} if key is not None else {}
        headers.update(more.pop("headers", {}))
        body = {"model": "scripted", "messages": messages, **more}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def respond(self, said: Any, key: str | None = "k", **more: Any) -> httpx.Response:
        """Post a response."""
        headers = {"X-Session-Key": key} if key is not None else {}
        headers.update(more.pop("headers", {}))
        body = {"model": "scripted", "input": said, **more}
        return await self.client.post("/v1/responses", json=body, headers=headers)

    async def log(self, key: str = "k", *, view: str = "visible") -> list[str]:
        """Return what a key's session says, item by item."""
        found = await self.gateway.read.session(DEFAULT_TENANT, key=Key(key))
        assert found is not None
        query = ItemQuery(view="log" if view == "log" else "visible")
        items = await self.gateway.read.items(found.session, query)
        return [text_of(msgspec.json.decode(item.body)) for item in items]

    async def until_queued(self, count: int, key: str = "k") -> None:
        """Wait until so many turns wait in a key's lane."""
        while True:
            found = await self.gateway.read.session(DEFAULT_TENANT, key=Key(key))
            if found is not None and found.queued_turns >= count:
                return


@asynccontextmanager
async def open_house(
    model: ScriptedModel | None = None,
    *,
    store_url: str = "memory:",
    lanes: LaneSettings | None = None,
    streams: StreamSettings | None = None,
    wrap: Callable[[Store], Store] = lambda store: store,
    context: ContextSettings | None = None,
    window: int | None = None,
) -> AsyncIterator[House]:
    """Open a house for the length of a block."""
    model = model or ScriptedModel()
    clock, ids = SystemClock(), RandomIds()
    store = await open_store(store_url, clock=clock)
    lanes = lanes or LaneSettings()
    limits = lanes.limits(can_run_again=True)
    gateway = Gateway(wrap(store), clock=clock, ids=ids, settings=lanes, limits=limits)
    compactor = Compactor(gateway, lambda _: model, lambda _: window, context)
    desk = TurnService(gateway, TurnExecutor(gateway, lambda _: model, fitter=compactor))
    await gateway.start(desk.run_recovered)
    application = Application(gateway, desk, OnlyModel(model), streams=streams, compactor=compactor)
    house = House(application, gateway, desk, model)
    try:
        yield house
    finally:
        model.door.set()
        await house.client.aclose()
        await desk.stop(5)
        await gateway.stop()
        await store.close()
