"""The ASGI application: find the endpoint, answer in one shape, whatever happens."""

import time
from typing import Any

from holdfast.core.errors import HoldfastError, ModelNotFound
from holdfast.engine.context.compactor import Compactor
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.turns.stateless import Passing
from holdfast.engine.turns.turn_service import Desk
from holdfast.http.api.chat import ChatApi
from holdfast.http.api.compactions import CompactionsApi
from holdfast.http.api.conversations import ConversationsApi
from holdfast.http.api.events import EventsApi
from holdfast.http.api.openapi import document
from holdfast.http.api.relay import Relaying
from holdfast.http.api.responses import ResponsesApi
from holdfast.http.api.responses_websocket import ResponsesSocket
from holdfast.http.api.sessions import SessionsApi
from holdfast.http.api.stored_completions import CompletionsApi
from holdfast.http.api.transcript import TranscriptApi
from holdfast.http.api.turns import TurnsApi
from holdfast.http.metrics import CONTENT_TYPE, PrometheusMeter
from holdfast.http.request.auth import OPEN_HOUSE, Doorkeeper, HouseRules
from holdfast.http.request.rate_limit import RequestLimit
from holdfast.http.request.submit_turn import TurnDesk
from holdfast.http.server.access_log import begin_request, log_request
from holdfast.http.server.cors import cors_headers, is_preflight
from holdfast.http.server.errors import problem, reply_to
from holdfast.http.server.types import (
    AnyReply,
    AsgiRequest,
    ClientLeft,
    Endpoint,
    Receive,
    Reply,
    Request,
    Routes,
    Scope,
    Send,
    json_reply,
)
from holdfast.http.server.websocket import Socket, check_origin
from holdfast.ports.provider import Upstreams


class Application:
    """One gateway behind HTTP."""

    def __init__(
        self,
        gateway: Gateway,
        desk: Desk,
        upstreams: Upstreams,
        rules: HouseRules = OPEN_HOUSE,
        *,
        streams: StreamSettings | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        self._gateway = gateway
        self._desk = desk
        self._rules = rules
        limit = RequestLimit(rules.requests_per_minute)
        self._doorkeeper = Doorkeeper(gateway.read, rules.doors, rules.allowed_hosts, limit)
        self._meter = gateway.meter
        self._is_draining = False
        self._upstreams = upstreams
        self._routes = Routes()
        turns = TurnDesk(gateway, desk, rules.reset, streams=streams)
        compactor = compactor or Compactor(gateway, upstreams.provider)
        self._relaying = Relaying(
            upstreams,
            Passing(upstreams.provider, gateway.ids.new, compactor),
            keep_alive_seconds=turns.streams.keep_alive_seconds,
        )
        responses, chat = ResponsesApi(turns, self._relaying), ChatApi(turns, self._relaying)
        self._sockets = ResponsesSocket(responses, turns, self._relaying, self._doorkeeper.admit)
        add = self._routes.add
        add("POST", "/v1/responses", responses.create)
        add("GET", "/v1/responses/{id}", responses.get)
        add("DELETE", "/v1/responses/{id}", responses.delete)
        add("POST", "/v1/responses/{id}/cancel", responses.cancel)
        add("GET", "/v1/responses/{id}/input_items", responses.input_items)
        add("POST", "/v1/responses/input_tokens", responses.input_tokens)
        add("POST", "/v1/chat/completions", chat.create)
        add("GET", "/v1/models", self._models)
        add("GET", "/v1/models/{model}", self._model)
        add("GET", "/v1/models/{owner}/{model}", self._model)
        add("GET", "/metrics", self._metrics)
        add("GET", "/openapi.json", self._openapi)
        add("GET", "/healthz", self._healthz)
        add("GET", "/readyz", self._readyz)
        self._add_completion_routes(gateway, desk)
        self._add_session_routes(gateway)
        transcripts = self._transcripts = TranscriptApi(gateway)
        add("GET", "/v1/transcript", transcripts.read)
        add("POST", "/v1/transcript", transcripts.add)
        add("DELETE", "/v1/transcript", transcripts.pop)
        add("POST", "/v1/transcript/lane", transcripts.take_lane)
        add("POST", "/v1/transcript/lane/{turn_id}", transcripts.end_lane)
        self._add_compaction_routes(CompactionsApi(turns, compactor))
        self._events = EventsApi(gateway, streams)
        add("GET", "/v1/events", self._events.all)
        add("GET", "/v1/sessions/{id}/events", self._events.of_session)

    def _add_completion_routes(self, gateway: Gateway, desk: Desk) -> None:
        completions = CompletionsApi(gateway, desk)
        add = self._routes.add
        add("GET", "/v1/chat/completions", completions.listed)
        add("GET", "/v1/chat/completions/{id}", completions.get)
        add("POST", "/v1/chat/completions/{id}", completions.annotate)
        add("DELETE", "/v1/chat/completions/{id}", completions.delete)
        add("GET", "/v1/chat/completions/{id}/messages", completions.messages)

    def _add_compaction_routes(self, compactions: CompactionsApi) -> None:
        add, one = self._routes.add, compactions
        add("POST", "/v1/responses/compact", one.compact_response)
        add("POST", "/v1/sessions/{id}/compact", one.compact_session)
        add("GET", "/v1/sessions/{id}/compactions", one.listed)
        add("GET", "/v1/sessions/{id}/compactions/{compaction_id}", one.get)
        add("POST", "/v1/sessions/{id}/compactions/{compaction_id}/undo", one.undo)

    def _add_session_routes(self, gateway: Gateway) -> None:
        conversations, sessions = ConversationsApi(gateway), SessionsApi(gateway)
        turns = TurnsApi(gateway)
        add = self._routes.add
        add("POST", "/v1/conversations", conversations.create)
        add("GET", "/v1/conversations/{id}", conversations.get)
        add("POST", "/v1/conversations/{id}", conversations.update)
        add("DELETE", "/v1/conversations/{id}", conversations.delete)
        add("GET", "/v1/conversations/{id}/items", conversations.items)
        add("POST", "/v1/conversations/{id}/items", conversations.add_items)
        add("GET", "/v1/conversations/{id}/items/{item_id}", conversations.get_item)
        add("DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item)
        add("GET", "/v1/sessions", sessions.list)
        add("GET", "/v1/sessions/{id}", sessions.get)
        add("POST", "/v1/sessions/{id}", sessions.update)
        add("DELETE", "/v1/sessions/{id}", sessions.delete)
        add("GET", "/v1/sessions/{id}/items", sessions.items)
        add("POST", "/v1/sessions/{id}/items", sessions.add_items)
        add("GET", "/v1/sessions/{id}/turns", sessions.turns)
        add("POST", "/v1/sessions/{id}/reset", sessions.reset)
        add("POST", "/v1/sessions/{id}/restore", sessions.restore)
        add("POST", "/v1/sessions/{id}/fork", sessions.fork)
        add("GET", "/v1/turns/{id}", turns.get)
        add("POST", "/v1/turns/{id}/cancel", turns.cancel)

    def drain(self) -> None:
        """Answer /readyz with 503 from now on, and accept requests as before."""
        self._is_draining = True

    def begin_stop(self) -> None:
        """Begin nothing more; what runs may finish, and its readers may read to the end."""
        self.drain()
        self._desk.begin_stop()
        self._events.close()
        self._transcripts.close()

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for a while, then break them off: whoever waits is told."""
        self.begin_stop()
        await self._desk.stop(grace_seconds)

    def look_again(self) -> None:
        """Look at the API keys of the store again before the next request."""
        self._doorkeeper.forget()

    async def is_locked(self) -> bool:
        """Whether every request needs a key."""
        return await self._doorkeeper.is_locked()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what any server brings: a request, or a WebSocket connection."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        elif scope["type"] == "http":
            await self.serve(AsgiRequest(scope, receive, send))

    async def serve(self, request: Request) -> None:
        """Answer one request, in one shape, whatever happens."""
        context = begin_request(request, self._gateway.ids.new)
        request.max_body_bytes = self._rules.body_bytes
        reply: AnyReply
        try:
            if request.method == "OPTIONS" and is_preflight(request):
                reply = Reply(b"", status=204, headers=[])
            else:
                await self._doorkeeper.admit(request)
                context.tenant = request.tenant
                found = self._routes.find(request)
                endpoint: Endpoint = self._elsewhere
                if found is not None:
                    endpoint = found.get(request.method, self._refuse_method)
                reply = await endpoint(request)
        except HoldfastError as exc:
            reply = reply_to(exc)
            reply.headers.extend(request.bound)
        except ClientLeft:
            return
        except Exception:  # noqa: BLE001 - the last line: it is logged, and answered in shape
            log.exception("request.broke", request_id=request.id, path=request.path)
            reply = problem(500, "something broke on our side", code="internal_error")
        reply.headers.append((b"x-request-id", request.id.encode()))
        if b"origin" in request.by_name:
            reply.headers.extend(cors_headers(request, self._rules.cors_origins))
        is_sent = True
        if isinstance(reply, Reply):
            await request.answer(reply.status, reply.headers, reply.body)
        else:
            is_sent = await reply.send(request)
        seconds = time.monotonic() - request.began_at
        self._meter.request_answered(request.method, request.route, reply.status, seconds)
        log_request(request, reply, context, seconds=seconds, is_sent=is_sent)
        if is_sent and reply.delivers is not None:
            self._gateway.delivered(*reply.delivers)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket connection."""
        query, headers = scope.get("query_string", b""), list(scope["headers"])
        request = Request("GET", scope["path"], query, headers)
        context = begin_request(request, self._gateway.ids.new)
        socket = Socket(scope, receive, send)
        try:
            await self._doorkeeper.admit(request)
            check_origin(request, self._rules.cors_origins)
            if request.path == "/v1/responses":
                await self._sockets.serve(request, socket)
            else:
                unknown = f"no such path: {request.path}"
                await socket.refuse(problem(404, unknown, code="unknown_url"))
        except HoldfastError as exc:
            rejection = reply_to(exc)
            seconds = time.monotonic() - request.began_at
            log_request(request, rejection, context, seconds=seconds, is_sent=True)
            await socket.refuse(rejection)

    async def _elsewhere(self, request: Request) -> AnyReply:
        """Pass on what is none of our endpoints, where an upstream may have it."""
        relayed = await self._relaying.endpoint(request)
        if relayed is None:
            return problem(404, f"no such path: {request.path}", code="unknown_url")
        request.route = "relayed"
        return relayed

    async def _refuse_method(self, request: Request) -> AnyReply:
        """Say by which methods a path can be asked."""
        allowed = ", ".join(sorted(self._routes.find(request) or ())).encode()
        return problem(
            405, f"{request.method} is not allowed here", code="method_not_allowed",
            headers=((b"allow", allowed),),
        )  # fmt: skip

    async def _models(self, _: Request) -> AnyReply:
        listing = await self._upstreams.models()
        told: dict[str, Any] = {"object": "list", "data": listing.models}
        if listing.unavailable:
            told["unavailable"] = listing.unavailable
        return json_reply(told)

    async def _model(self, request: Request) -> AnyReply:
        name = "/".join(request.params.values())
        for model in (await self._upstreams.models()).models:
            if model["id"] == name:
                return json_reply(model)
        raise ModelNotFound(f"The model '{name}' does not exist.")

    async def _metrics(self, _: Request) -> Reply:
        """What an operator's Prometheus reads."""
        if not isinstance(self._meter, PrometheusMeter):
            return problem(404, "this gateway counts nothing", code="unknown_url")
        return Reply(self._meter.render(), headers=[(b"content-type", CONTENT_TYPE)])

    async def _openapi(self, _: Request) -> Reply:
        """Return this document."""
        return json_reply(document(self._routes.listed()))

    async def _healthz(self, _: Request) -> Reply:
        return json_reply({"status": "ok"})

    async def _readyz(self, request: Request) -> Reply:
        """Ready means that the store answers a read, and that the gateway is not stopping."""
        if self._is_draining:
            return problem(503, "the gateway is stopping", code="draining")
        await self._gateway.read.session(request.tenant, session_id=None, key=None)
        return json_reply({"status": "ready"})
