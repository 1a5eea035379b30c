"""A gateway in the test's own loop: memory store, scripted model, real server protocol."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId
from holdfast.core.model.session import Usage
from holdfast.doctor.service import DoctorService
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import (
    ContextSettings,
    LaneSettings,
    StreamSettings,
    ToolSettings,
)
from holdfast.engine.turns.executor import TurnExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.admin.operations import AdminServices
from holdfast.http.app import Application, Services
from holdfast.ports.channel import ChannelMessages
from holdfast.ports.clock import Clock
from holdfast.ports.provider import (
    Answer,
    EventSink,
    ModelCall,
    ModelEvent,
    ModelListing,
    Provider,
    RelayRequest,
    StateUse,
    UpstreamStatus,
)
from holdfast.ports.store import ItemQuery, Store
from holdfast.ports.tools import Toolbox
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.reports import SqlReports
from tests.http_server import HttpServer, serving

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
    """Return an item's text, for assertions that read like a conversation."""
    if item.get("type") == "function_call":
        return f"{item['name']}()"
    if str(item.get("type", "")).endswith("_output"):
        return f"={item['output']}"
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())


class ScriptedModel:
    """Answers by script and records its calls; `gate` holds up answers while it is cleared."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or (lambda items: [said(f"re:{text_of(items[-1])}")])
        self.calls: list[ModelCall] = []
        self.shown: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Semaphore(0)

    name = "scripted"
    detect = None

    def check(self, call: ModelCall) -> None:
        """Accept every call."""

    def state_use(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> StateUse | None:
        """Return no provider state."""

    async def _answer(self, call: ModelCall) -> list[Item]:
        items = [msgspec.json.decode(body) for body in call.items]
        self.calls.append(call)
        self.shown.append([text_of(item) for item in items])
        self.entered.release()
        await self.gate.wait()
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
        """Return the only model."""
        return [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]

    async def close(self) -> None:
        """Do nothing."""


class OnlyModel:
    """Upstreams with a single provider in this process."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def provider(self, model: str) -> Provider:
        """Return the only provider."""
        return self._model

    def statuses(self) -> Sequence[UpstreamStatus]:
        """Return none: it is no server."""
        return ()

    def wire_body(self, call: ModelCall) -> None:
        """Return nothing: it has no server."""

    def dropped_tools(self, model: str, fields: Mapping[str, msgspec.Raw]) -> Sequence[str]:
        """Return none."""
        return ()

    def takes_chat(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> bool:
        """Return False: there is no upstream server."""
        return False

    async def detect(self, report: Callable[[str], None]) -> None:
        """Do nothing: there is no server to ask."""

    async def models(self) -> ModelListing:
        """Return the provider's models."""
        return ModelListing(await self._model.models())

    async def relay(self, request: RelayRequest) -> None:
        """Return None: there is no upstream to relay to."""


class RunningGateway:
    """A served application, its parts, and an HTTP client."""

    def __init__(
        self, server: HttpServer, engine: Gateway, turn_service: TurnService, model: ScriptedModel
    ) -> None:
        self.server = server
        self.application = server.application
        self.turn_service = turn_service
        self.engine = engine
        self.model = model
        self.client = httpx.AsyncClient(base_url=server.url, timeout=30)

    async def chat(
        self, messages: list[Item], key: str | None = "k", **more: Any
    ) -> httpx.Response:
        """Post a chat completion."""
        headers = {"X-Session-Key": key} if key is not None else {}
        headers.update(more.pop("headers", {}))
        body = {"model": "scripted", "messages": messages, **more}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def respond(self, text: Any, key: str | None = "k", **more: Any) -> httpx.Response:
        """Post a response."""
        headers = {"X-Session-Key": key} if key is not None else {}
        headers.update(more.pop("headers", {}))
        body = {"model": "scripted", "input": text, **more}
        return await self.client.post("/v1/responses", json=body, headers=headers)

    async def log(self, key: str = "k", *, view: str = "visible") -> list[str]:
        """Return the texts of the items of a key's session."""
        found = await self.engine.read.session(DEFAULT_TENANT, key=Key(key))
        assert found is not None
        query = ItemQuery(view="log" if view == "log" else "visible")
        items = await self.engine.read.items(found.session, query)
        return [text_of(msgspec.json.decode(item.body)) for item in items]

    async def until_queued(
        self, count: int, key: str = "k", *, session_id: SessionId | None = None
    ) -> None:
        """Wait until this many turns are queued in the lane of a key, or of a session."""
        wanted = Key(key) if session_id is None else None
        while True:
            found = await self.engine.read.session(
                DEFAULT_TENANT, key=wanted, session_id=session_id
            )
            if found is not None and found.queued_turns >= count:
                return

    async def until_idle(self, key: str = "k") -> None:
        """Wait until no turn of a key's lane runs or waits."""
        while True:
            found = await self.engine.read.session(DEFAULT_TENANT, key=Key(key))
            assert found is not None
            if found.session.active_turn_id is None and not found.queued_turns:
                return


@asynccontextmanager
async def open_gateway(
    model: ScriptedModel | None = None,
    *,
    store_url: str = "memory:",
    lanes: LaneSettings | None = None,
    streams: StreamSettings | None = None,
    wrap: Callable[[Store], Store] = lambda store: store,
    context: ContextSettings | None = None,
    window: int | None = None,
    toolbox: Callable[[Gateway], Toolbox] | None = None,
    tools: ToolSettings | None = None,
    channels: ChannelMessages | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway for the length of a block; a `clock` also replaces the database's."""
    model = model or ScriptedModel()
    if clock is not None and store_url.startswith("postgres"):
        store = await open_postgres(store_url, clock=clock)
    else:
        store = await open_store(store_url, clock=clock or SystemClock())
    ids = RandomIds()
    lanes = lanes or LaneSettings()
    limits = lanes.limits(can_run_again=True)
    gateway = Gateway(wrap(store), clock=store.clock, ids=ids, settings=lanes, limits=limits)
    compactor = Compactor(gateway, lambda _: model, lambda _: window, context)
    executor = TurnExecutor(
        gateway,
        lambda _: model,
        compactor=compactor,
        toolbox=toolbox(gateway) if toolbox is not None else None,
        tools=tools,
        channels=channels,
    )
    turn_service = TurnService(gateway, executor)
    await gateway.start(turn_service.run_recovered)
    doctor = DoctorService(store, store_url, turn_seconds=600.0)
    application = Application(
        gateway,
        turn_service,
        OnlyModel(model),
        streams=streams,
        compactor=compactor,
        services=Services(admin=AdminServices(SqlReports(store), doctor.diagnose)),
    )
    try:
        async with serving(application) as server:
            running = RunningGateway(server, gateway, turn_service, model)
            try:
                yield running
            finally:
                model.gate.set()
                await running.client.aclose()
    finally:
        await gateway.stop()
        await store.close()
