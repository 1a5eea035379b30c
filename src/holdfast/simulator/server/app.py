"""The simulator as an ASGI application: turn requests into calls and answer them."""

import logging
from typing import Any
from urllib.parse import parse_qsl

from holdfast.simulator.delivery.errors import Problem, invalid, openai_error
from holdfast.simulator.delivery.exchange import handle_call
from holdfast.simulator.delivery.http_outlet import HttpOutlet, Receive, Send
from holdfast.simulator.server.control import Control, is_control
from holdfast.simulator.server.keys import key_of, key_problem
from holdfast.simulator.server.routes import Found, Route, RouteTable
from holdfast.simulator.server.websocket import ResponsesSockets
from holdfast.simulator.state.call import ApiAnswer, Call
from holdfast.simulator.state.forms import read_form
from holdfast.simulator.state.json import Json, NotJson, decode_object, encode
from holdfast.simulator.state.world import World

Scope = dict[str, Any]
_log = logging.getLogger("holdfast.simulator")
NOT_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
    "your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not "
    "valid JSON. If you have trouble figuring out how to fix this, please contact us through our "
    "help center at help.openai.com.)"
)


class SimulatorApplication:
    """The ASGI entry point for every request."""

    def __init__(self, world: World, control: Control) -> None:
        self.world = world
        self._control = control
        self._routes = RouteTable()
        self._sockets = ResponsesSockets(world, self.make_call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; log errors of the simulator itself."""
        try:
            if scope["type"] == "http":
                await self._answer_http(scope, receive, send)
            elif scope["type"] == "websocket":
                await self._sockets.serve(scope, receive, send)
        except Exception:
            _log.exception("simulator.broken %s", scope.get("path"))
            raise

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await _read_body(receive)
        if raw is None:
            return
        path: str = scope["path"]
        if is_control(path):
            await self._control.answer(scope, raw, send)
            return
        if path == "/":
            await _send_banner(send)
            return
        probe = self._answer_to_probe(scope, raw)
        if probe is not None:
            await _send_json(send, probe)
            return
        call, found = self._open_call(scope, raw)
        outlet = HttpOutlet(
            receive, send, scope["simulator.transport"], call.ids.new("req_", size=16)
        )
        await handle_call(self.world, call, found.route.handler, outlet)

    def _open_call(self, scope: Scope, raw: bytes) -> tuple[Call, Found]:
        """Return the call and its route, or a route that answers with the error."""
        method, path = scope["method"], scope["path"]
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        found = self._routes.find(method, path)
        body, unreadable = _read_body_fields(headers.get("content-type", ""), raw)
        problem = unreadable
        if found is None or found.route.api not in self.world.profile.apis:
            problem = self._unknown_url(method, path)
            found = Found(Route("unknown", "unknown", _refuse(problem)))
        key = key_of(headers, query)
        problem = problem or key_problem(self.world, found.route.api, key)
        call = self.make_call(found, method, path, query, headers, raw, body, key)
        call.is_json = unreadable is None
        if problem is not None:
            found = Found(Route(found.route.api, found.route.operation, _refuse(problem)))
        return call, found

    def _answer_to_probe(self, scope: Scope, raw: bytes) -> Problem | None:
        """Return the answer to a gateway that asks which API is spoken here; None for a call.

        It is not a call of a model: it is not recorded, and takes no fault and no id.
        """
        headers = dict(scope["headers"])
        if raw != b"{}" or headers.get(b"user-agent") != b"holdfast":
            return None
        method, path = scope["method"], scope["path"]
        found = self._routes.find(method, path)
        if found is None or found.route.api not in self.world.profile.apis:
            return self._unknown_url(method, path)
        if found.route.api not in ("responses", "chat") or found.route.operation != "create":
            return None
        texts = {name.decode("latin-1"): text.decode("latin-1") for name, text in headers.items()}
        problem = key_problem(self.world, found.route.api, key_of(texts, {}))
        return problem or invalid("you must provide a model parameter", "model")

    def make_call(
        self,
        found: Found,
        method: str,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        raw: bytes,
        body: Json,
        key: str,
    ) -> Call:
        """Return the call for a request."""
        world = self.world
        account = world.account(key)
        ids = world.ids_for(account)
        world.calls += 1
        return Call(
            number=world.calls,
            api=found.route.api,
            operation=found.route.operation,
            method=method,
            path=path,
            query=query,
            headers=headers,
            raw=raw,
            body=body,
            parameters=found.parameters,
            account=account,
            ids=ids,
            now=world.clock.at(account.serial),
        )

    def _unknown_url(self, method: str, path: str) -> Problem:
        if self._routes.find(method, path) is None and self._routes.knows_path(path):
            message = (
                f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different "
                "HTTP method?)"
            )
            return Problem(405, openai_error(message))
        return Problem(404, openai_error(f"Invalid URL ({method} {path})"))


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body; None when the client disconnected before sending it."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _read_body_fields(content_type: str, raw: bytes) -> tuple[Json, Problem | None]:
    """Return the fields of a JSON object, or of a form, whose files are given by their names."""
    if content_type.startswith("multipart/form-data"):
        fields, files = read_form(content_type, raw)
        return fields | {field: file.name for field, file in files.items()}, None
    return _read_json(raw)


def _read_json(raw: bytes) -> tuple[Json, Problem | None]:
    try:
        return decode_object(raw), None
    except NotJson:
        return {}, invalid(NOT_JSON, None)


def _refuse(problem: Problem) -> Any:
    def refuse(world: World, call: Call) -> ApiAnswer:  # noqa: ARG001 - a handler's signature
        raise problem

    return refuse


async def _send_json(send: Send, problem: Problem) -> None:
    body = encode(problem.body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    start = {"type": "http.response.start", "status": problem.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_banner(send: Send) -> None:
    """Answer the root path, which some clients use as a health check."""
    body = b"holdfast provider simulator\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
