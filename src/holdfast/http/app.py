"""The HTTP application: authenticate, route, answer, and turn every error into a reply."""

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, ModelNotFound, release_frames
from holdfast.engine.logging import log
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.turns.approvals import ApprovalService
from holdfast.engine.turns.stateless import StatelessExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.http.admin.channels import ChannelsApi
from holdfast.http.admin.console import ConsoleApi
from holdfast.http.admin.keys import KeysApi
from holdfast.http.admin.operations import AdminServices, OperationsApi
from holdfast.http.admin.schedules import SchedulesApi
from holdfast.http.api.chat import ChatApi
from holdfast.http.api.compactions import CompactionsApi
from holdfast.http.api.conversations import ConversationsApi
from holdfast.http.api.events import EventsApi
from holdfast.http.api.export import ExportApi
from holdfast.http.api.health import HealthApi
from holdfast.http.api.openapi import check_query, document
from holdfast.http.api.relay import RelayService
from holdfast.http.api.responses import ResponsesApi
from holdfast.http.api.responses_websocket import ResponsesWebSocket
from holdfast.http.api.sessions import SessionsApi
from holdfast.http.api.stored_completions import CompletionsApi
from holdfast.http.api.transcript import TranscriptApi
from holdfast.http.api.turns import TurnsApi
from holdfast.http.request.auth import DEFAULT_CONFIG, Authenticator, HttpConfig, RateLimiter
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.submit_turn import TurnSubmitter
from holdfast.http.server.access_log import access_logger, begin_request, log_request
from holdfast.http.server.cors import check_origin, cors_headers, is_preflight
from holdfast.http.server.errors import error_reply, reply_for_error
from holdfast.http.server.memory_budget import UNCOUNTED_BYTES, Holding, MemoryBudget, ServerBusy
from holdfast.http.server.types import (
    AnyReply,
    ClientDisconnected,
    Endpoint,
    Reply,
    Request,
    Routes,
    json_reply,
)
from holdfast.http.server.websocket import Receive, Scope, Send, WebSocket
from holdfast.http.tools.approvals import ApprovalsApi
from holdfast.http.tools.catalogue import ToolsApi, ToolServices
from holdfast.http.tools.mcp_server import McpServer
from holdfast.http.tools.search import SearchApi
from holdfast.observability.metrics import CONTENT_TYPE, PrometheusMeter
from holdfast.ports.channel import ChannelDirectory
from holdfast.ports.provider import Upstreams
from holdfast.ports.request_context import RequestContext
from holdfast.ports.schedules import ScheduleDirectory


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Optional parts of a gateway; without a part its endpoints do not exist."""

    admin: AdminServices | None = None
    tools: ToolServices | None = None
    channels: ChannelDirectory | None = None
    schedules: ScheduleDirectory | None = None


NO_SERVICES = Services()
WEBSOCKET_PATH = "/v1/responses"
RELAYED = "relayed"
REPLY_BYTES = 64 * 1024 * 1024
"""What large replies may take until their clients have read them."""


class Application:
    """One gateway's HTTP API."""

    def __init__(
        self,
        gateway: Gateway,
        turn_service: TurnService,
        upstreams: Upstreams,
        config: HttpConfig = DEFAULT_CONFIG,
        *,
        streams: StreamSettings | None = None,
        compactor: Compactor | None = None,
        services: Services = NO_SERVICES,
    ) -> None:
        self._gateway = gateway
        self._turn_service = turn_service
        self._config = config
        limiter = RateLimiter(config.requests_per_minute)
        self._authenticator = Authenticator(gateway.read, config, limiter)
        self._meter = gateway.meter
        self._upstreams = upstreams
        self.body_budget = MemoryBudget(max(config.body_bytes_in_flight, config.body_bytes))
        self.reply_budget = MemoryBudget(REPLY_BYTES, "replies")
        self._decoder = BodyDecoder(config.items)
        self._routes = Routes()
        turns = self._new_submitter(streams, services.tools)
        compactor = compactor or Compactor(gateway, upstreams.provider)
        self._relay = RelayService(
            upstreams,
            StatelessExecutor(upstreams.provider, gateway.ids.new, compactor, gateway.meter),
            gateway.meter,
            keep_alive_seconds=turns.streams.keep_alive_seconds,
        )
        responses = ResponsesApi(turns, self._relay, self._decoder)
        chat = ChatApi(turns, self._relay, self._decoder)
        self._websockets = ResponsesWebSocket(responses, turns, self._relay, self._authenticator)
        self._add_response_routes(responses)
        self._routes.add("POST", "/v1/chat/completions", chat.create)
        self._health = HealthApi(gateway)
        self._add_service_routes()
        self._add_completion_routes(gateway, turn_service)
        self._add_session_routes(gateway, turn_service, compactor)
        self._add_admin_routes(gateway, services.admin)
        transcript = self._transcript = TranscriptApi(
            gateway, self._decoder, self._authenticator.until_revoked
        )
        self._add_transcript_routes(transcript)
        self._add_compaction_routes(CompactionsApi(turns, compactor, self._decoder))
        self._events = EventsApi(gateway, self._authenticator.until_revoked, streams)
        self._export = ExportApi(gateway, self._authenticator.until_revoked)
        self._routes.add("GET", "/v1/sessions/export", self._export.export)
        self._routes.add("GET", "/v1/events", self._events.all)
        self._routes.add("GET", "/v1/sessions/{id}/events", self._events.of_session)
        self._add_automation_routes(gateway, services)

    def _add_service_routes(self) -> None:
        """Add endpoints about the gateway itself: models, metrics, the API document and health."""
        add = self._routes.add
        add("GET", "/v1/models", self._models)
        add("GET", "/v1/models/{model}", self._model)
        add("GET", "/v1/models/{owner}/{model}", self._model)
        add("GET", "/metrics", self._metrics)
        add("GET", "/openapi.json", self._openapi)
        add("GET", "/healthz", self._health.healthz)
        add("HEAD", "/healthz", self._health.healthz)
        add("GET", "/readyz", self._health.readyz)
        add("HEAD", "/readyz", self._health.readyz)

    def _new_submitter(
        self, streams: StreamSettings | None, tools: ToolServices | None
    ) -> TurnSubmitter:
        """Create the turn submitter, with the tools that requests may use."""
        approvers = tools.approvers if tools is not None else ()
        approvals = ApprovalService(self._gateway, self._turn_service, approvers)
        self._add_tool_routes(approvals, tools)
        return TurnSubmitter(
            self._gateway,
            self._turn_service,
            self._config.reset,
            streams=streams,
            approvals=approvals,
            default_tools=tools.defaults if tools is not None else None,
        )

    def _add_response_routes(self, responses: ResponsesApi) -> None:
        add = self._routes.add
        add("POST", "/v1/responses", responses.create)
        add("GET", "/v1/responses/{id}", responses.get)
        add("DELETE", "/v1/responses/{id}", responses.delete)
        add("POST", "/v1/responses/{id}/cancel", responses.cancel)
        add("GET", "/v1/responses/{id}/input_items", responses.input_items)
        add("POST", "/v1/responses/input_tokens", responses.input_tokens)

    def _add_tool_routes(self, approvals: ApprovalService, tools: ToolServices | None) -> None:
        add, api = self._routes.add, ApprovalsApi(approvals)
        add("GET", "/v1/approvals", api.list_all)
        add("POST", "/v1/approvals/{id}", api.answer)
        if tools is not None:
            add("GET", "/v1/tools", ToolsApi(tools.toolbox).list_all)
            if tools.builtin is not None:
                add("POST", "/mcp", McpServer(self._gateway, tools.builtin).post)

    def _add_transcript_routes(self, transcript: TranscriptApi) -> None:
        add = self._routes.add
        add("GET", "/v1/transcript", transcript.read)
        add("POST", "/v1/transcript", transcript.add)
        add("DELETE", "/v1/transcript", transcript.pop)
        add("POST", "/v1/transcript/lane", transcript.acquire_lane)
        add("POST", "/v1/transcript/lane/{turn_id}", transcript.end_lane)

    def _add_automation_routes(self, gateway: Gateway, services: Services) -> None:
        self._add_channel_routes(gateway, services.channels)
        self._add_schedule_routes(gateway, services.schedules)

    def _add_schedule_routes(self, gateway: Gateway, directory: ScheduleDirectory | None) -> None:
        if directory is None:
            return
        schedules = SchedulesApi(gateway, directory)
        add = self._routes.add
        add("GET", "/v1/schedules", schedules.list_page)
        add("POST", "/v1/schedules", schedules.save)
        add("GET", "/v1/schedules/{name}", schedules.get)
        add("DELETE", "/v1/schedules/{name}", schedules.delete)
        add("POST", "/v1/schedules/{name}/run", schedules.run)
        add("POST", "/v1/schedules/{name}/pause", schedules.pause)
        add("POST", "/v1/schedules/{name}/resume", schedules.resume)

    def _add_channel_routes(self, gateway: Gateway, directory: ChannelDirectory | None) -> None:
        if directory is None:
            return
        channels = ChannelsApi(gateway, directory)
        add = self._routes.add
        add("GET", "/v1/channels", channels.list_page)
        add("POST", "/v1/channels/{name}/messages", channels.send)
        add("POST", "/v1/channels/{name}/check", channels.check)
        add("POST", "/v1/channels/{name}/webhook", channels.webhook)
        add("GET", "/v1/channels/{name}/pairings", channels.pairings)
        add("POST", "/v1/channels/{name}/pairings/{code}/approve", channels.approve)
        add("DELETE", "/v1/channels/{name}/pairings/{sender}", channels.revoke)
        add("GET", "/v1/outbox", channels.outbox)
        add("POST", "/v1/outbox/{id}/retry", channels.retry)
        add("POST", "/v1/outbox/{id}/drop", channels.drop)

    def _add_completion_routes(self, gateway: Gateway, turn_service: TurnService) -> None:
        completions = CompletionsApi(gateway, turn_service)
        add = self._routes.add
        add("GET", "/v1/chat/completions", completions.list_page)
        add("GET", "/v1/chat/completions/{id}", completions.get)
        add("POST", "/v1/chat/completions/{id}", completions.annotate)
        add("DELETE", "/v1/chat/completions/{id}", completions.delete)
        add("GET", "/v1/chat/completions/{id}/messages", completions.messages)

    def _add_compaction_routes(self, compactions: CompactionsApi) -> None:
        add = self._routes.add
        add("POST", "/v1/responses/compact", compactions.compact_response)
        add("POST", "/v1/sessions/{id}/compact", compactions.compact_session)
        add("GET", "/v1/sessions/{id}/compactions", compactions.list_page)
        add("GET", "/v1/sessions/{id}/compactions/{compaction_id}", compactions.get)
        add("POST", "/v1/sessions/{id}/compactions/{compaction_id}/undo", compactions.undo)

    def _add_admin_routes(self, gateway: Gateway, services: AdminServices | None) -> None:
        keys = KeysApi(gateway, self._authenticator)
        add = self._routes.add
        add("GET", "/v1/keys", keys.list_all)
        add("POST", "/v1/keys", keys.create)
        add("DELETE", "/v1/keys/{id}", keys.revoke)
        if services is not None:
            operations = OperationsApi(services, self._upstreams)
            add("GET", "/v1/workers", operations.workers)
            add("GET", "/v1/upstreams", operations.upstreams)
            add("GET", "/v1/usage", operations.usage)
            add("GET", "/v1/doctor", operations.doctor)
        if services is not None and services.console is not None:
            console = ConsoleApi(services.console)
            add("GET", "/", console.root)
            add("GET", "/console", console.index)
            add("GET", "/console/", console.index)
            add("GET", "/console/{file}", console.file)
            add("GET", "/console/{folder}/{file}", console.file)

    def _add_session_routes(
        self, gateway: Gateway, turn_service: TurnService, compactor: Compactor
    ) -> None:
        conversations = ConversationsApi(gateway, self._decoder)
        sessions = SessionsApi(gateway, self._decoder)
        turns = TurnsApi(gateway, turn_service, compactor, self._upstreams)
        add = self._routes.add
        add("GET", "/v1/search", SearchApi(gateway, is_on=self._config.has_search).search)
        add("POST", "/v1/conversations", conversations.create)
        add("GET", "/v1/conversations/{id}", conversations.get)
        add("POST", "/v1/conversations/{id}", conversations.update)
        add("DELETE", "/v1/conversations/{id}", conversations.delete)
        add("GET", "/v1/conversations/{id}/items", conversations.items)
        add("POST", "/v1/conversations/{id}/items", conversations.add_items)
        add("GET", "/v1/conversations/{id}/items/{item_id}", conversations.get_item)
        add("DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item)
        add("GET", "/v1/sessions", sessions.list_page)
        add("GET", "/v1/sessions/{id}", sessions.get)
        add("POST", "/v1/sessions/{id}", sessions.update)
        add("DELETE", "/v1/sessions/{id}", sessions.delete)
        add("GET", "/v1/sessions/{id}/items", sessions.items)
        add("POST", "/v1/sessions/{id}/items", sessions.add_items)
        add("GET", "/v1/sessions/{id}/turns", sessions.turns)
        add("POST", "/v1/sessions/{id}/reset", sessions.reset)
        add("POST", "/v1/sessions/{id}/restore", sessions.restore)
        add("POST", "/v1/sessions/{id}/fork", sessions.fork)
        add("GET", "/v1/sessions/{id}/forks", sessions.forks)
        add("GET", "/v1/turns/{id}", turns.get)
        add("GET", "/v1/turns/{id}/projection", turns.projection)
        add("POST", "/v1/turns/{id}/cancel", turns.cancel)

    async def load_keys(self) -> None:
        """Read the API keys; without them no request is admitted."""
        await self._authenticator.load()

    def drain(self) -> None:
        """Answer /readyz with 503 from now on; still accept requests."""
        self._health.drain()

    def begin_stop(self) -> None:
        """Accept no new turns; let running turns finish and clients read their streams."""
        self.drain()
        self._turn_service.begin_stop()
        self._events.close()
        self._export.close()
        self._transcript.close()

    async def detect_upstreams(self, report: Callable[[str], None]) -> None:
        """Find out what the upstreams speak; report each in one line."""
        await self._upstreams.detect(report)

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for `grace_seconds`, then cancel them."""
        self.begin_stop()
        await self._turn_service.stop(grace_seconds)
        await self._decoder.close()

    def reload_keys(self) -> None:
        """Read the API keys from the store again before the next request."""
        self._authenticator.invalidate()

    async def requires_key(self) -> bool:
        """Return whether every request needs an API key."""
        return await self._authenticator.requires_key()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket connection, which the server brings as ASGI messages."""
        await self._serve_websocket(scope, receive, send)

    async def serve(self, request: Request) -> None:
        """Answer one request; every error becomes a JSON reply."""
        context = begin_request(request, self._gateway.ids.new)
        request.max_body_bytes, request.budget = self._config.body_bytes, self.body_budget
        try:
            reply: AnyReply
            try:
                if request.method == "OPTIONS" and is_preflight(request):
                    reply = Reply(b"", status=204, headers=[])
                else:
                    # The route first: a rejected request is logged and counted by it too.
                    methods = self._routes.exact.get(request.path)
                    if methods is not None:
                        request.route = request.path
                    else:
                        methods = self._routes.find(request)
                    await self._authenticator.authenticate(request)
                    context.tenant = request.tenant
                    endpoint: Endpoint = self._relay_or_404
                    if methods is not None:
                        endpoint = methods.get(request.method, self._reject_method)
                        if request.query_string and request.method in methods:
                            check_query(request)
                    request.endpoint = endpoint
                    reply = await endpoint(request)
                    if request.answer_headers:
                        reply.headers.extend(request.answer_headers)
            except HoldfastError as exc:
                reply = reply_for_error(exc)
                release_frames(exc)
                reply.headers.extend(request.session_headers)
            except ClientDisconnected:
                return
            except Exception:  # noqa: BLE001 - top of the task: logged and answered
                log.exception("request.failed", request_id=request.id, path=request.path)
                reply = error_reply(500, "internal server error", code="internal_error")
            await self._send(request, reply, context)
        finally:
            if request.content or request.held is not None:
                request.release_body()

    async def _send_large(self, request: Request, reply: AnyReply, context: RequestContext) -> None:
        """Send a reply that counts until it is written."""
        held = request.reply_held = self.reply_budget.open(request.party)
        answered: AnyReply
        try:
            answered = await self._hold_reply(request, held, reply)
        except ClientDisconnected:
            if request.disconnected:
                held.close()
                return
            # Most who close their sending side are gone, so nothing is read for them.
            answered = reply_for_error(ServerBusy("the client left while it waited for memory"))
        except HoldfastError as exc:
            answered = reply_for_error(exc)
            answered.headers.extend(request.session_headers)
        try:
            await self._send(request, answered, context)
        finally:
            held.close()

    async def _hold_reply(self, request: Request, held: Holding, reply: AnyReply) -> AnyReply:
        """Return a reply once there is room for it.

        Until then it is dropped, and read again. The answer of a turn, or of an upstream, cannot
        be had again: it counts whether there is room or not.
        """
        endpoint = request.endpoint
        is_read = request.method == "GET" and request.route != RELAYED
        answered = reply
        while isinstance(answered, Reply):
            size = len(answered.body)
            if not is_read or endpoint is None:
                held.force(size)
            elif not held.try_grow(size):
                answered.body = b""  # also for those who refer to the reply
                await request.wait_for(held, size)
                answered = await endpoint(request)
                answered.headers.extend(request.answer_headers)
                continue
            held.finish(size)
            return answered
        held.finish(0)
        return answered

    async def _send(self, request: Request, reply: AnyReply, context: RequestContext) -> None:
        """Send a reply, then count and log the request."""
        is_large = isinstance(reply, Reply) and len(reply.body) > UNCOUNTED_BYTES
        if is_large and request.reply_held is None:
            await self._send_large(request, reply, context)
            return
        reply.headers.append((b"x-request-id", request.id.encode()))
        if b"origin" in request.by_name:
            reply.headers.extend(cors_headers(request, self._config.cors_origins))
        if isinstance(reply, Reply):
            is_complete = await request.answer(reply.status, reply.headers, reply.body)
        else:
            is_complete = await reply.send(request)
        seconds = time.monotonic() - request.started_at
        self._meter.request_answered(request.method, request.route, reply.status, seconds)
        if reply.status >= 400 or access_logger.isEnabledFor(logging.INFO):
            log_request(request, reply, context, seconds=seconds, is_sent=is_complete)
        # A half-closed client may be gone, so its answer does not count as delivered.
        if is_complete and not request.is_half_closed and reply.delivers is not None:
            request.is_delivered = True
            self._gateway.delivered.add(reply.delivers)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket connection."""
        query, headers = scope.get("query_string", b""), list(scope["headers"])
        request = Request("GET", scope["path"], query, headers)
        context = begin_request(request, self._gateway.ids.new)
        request.budget = self.body_budget
        if request.path == WEBSOCKET_PATH:
            request.route = WEBSOCKET_PATH
        websocket = WebSocket(scope, receive, send)
        try:
            await self._authenticator.authenticate(request)
            if request.sender:
                websocket.party = request.tenant
            check_origin(request, self._config.cors_origins)
            if request.path == WEBSOCKET_PATH:
                await self._websockets.serve(request, websocket)
                return
            message = f"no such path: {request.path}"
            rejection = error_reply(404, message, code="unknown_url")
        except HoldfastError as exc:
            rejection = reply_for_error(exc)
        rejection.headers.append((b"x-request-id", request.id.encode()))
        seconds = time.monotonic() - request.started_at
        log_request(request, rejection, context, seconds=seconds, is_sent=True)
        await websocket.reject(rejection)

    async def _relay_or_404(self, request: Request) -> AnyReply:
        """Relay OpenAI endpoints that we do not serve to an upstream, or answer 404."""
        relayed = await self._relay.endpoint(request)
        if relayed is None:
            return error_reply(404, f"no such path: {request.path}", code="unknown_url")
        request.route = RELAYED
        return relayed

    async def _reject_method(self, request: Request) -> AnyReply:
        """Answer 405 with the methods that the path allows."""
        allowed = ", ".join(sorted(self._routes.find(request) or ())).encode()
        return error_reply(
            405, f"{request.method} is not allowed here", code="method_not_allowed",
            headers=((b"allow", allowed),),
        )  # fmt: skip

    async def _models(self, _: Request) -> AnyReply:
        listing = await self._upstreams.models()
        body: dict[str, Any] = {"object": "list", "data": listing.models}
        if listing.unavailable:
            body["unavailable"] = listing.unavailable
        return json_reply(body)

    async def _model(self, request: Request) -> AnyReply:
        name = "/".join(request.params.values())
        for model in (await self._upstreams.models()).models:
            if model["id"] == name:
                return json_reply(model)
        raise ModelNotFound(f"The model '{name}' does not exist.")

    async def _metrics(self, _: Request) -> Reply:
        """Return the Prometheus metrics."""
        if not isinstance(self._meter, PrometheusMeter):
            return error_reply(404, "metrics are not enabled", code="unknown_url")
        return Reply(self._meter.render(), headers=[(b"content-type", CONTENT_TYPE)])

    async def _openapi(self, _: Request) -> Reply:
        """Return this document."""
        return json_reply(document(self._routes.entries()))
