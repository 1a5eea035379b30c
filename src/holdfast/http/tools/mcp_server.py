"""Holdfast as an MCP server: POST /mcp with the built-in tools, all of which only read.

It is the stateless form of MCP's streamable HTTP: every request is answered by one JSON body, so
there is no connection and no MCP session to keep. Both generations of the protocol are supported:
the older one begins with `initialize`, in the newer one each request names its version.
`X-Session-Key` names the conversation that the tools are about; API keys are those of every other
endpoint.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from holdfast._version import __version__
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.session import Session, begin_session
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.body import check_content_type
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.server.types import AnyReply, Reply, Request, json_reply
from holdfast.ports.tools import Tool, ToolCaller, ToolResult

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol that begin with `initialize`, the newest first."""
STATELESS_VERSIONS = ("2026-07-28",)
"""Versions in which each request names its version."""
META = "io.modelcontextprotocol/"
MAX_BATCH = 32
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = (
    -32700, -32600, -32601, -32602, -32603,
)  # fmt: skip
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
STATUS = {
    PARSE_ERROR: 400, INVALID_REQUEST: 400, INVALID_PARAMS: 400, HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400, METHOD_NOT_FOUND: 404,
}  # fmt: skip
"""The HTTP status of errors in the newer versions; others have 200."""
INSTRUCTIONS = (
    "Read-only access to conversations that Holdfast stores: their state, their history and a "
    "full-text search. The header X-Session-Key names the conversation."
)
Message = dict[str, Any]
Runner = Callable[[str, Message], Awaitable[Message]]
"""Answers a method with its parameters."""


class ReadOnlyTools(Protocol):
    """The built-in tools."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools."""
        ...

    def tool(self, name: str) -> Tool:
        """Return a tool as it is described to a model."""
        ...

    async def call(self, caller: ToolCaller, name: str, arguments: dict[str, object]) -> ToolResult:
        """Run a tool."""
        ...


class _RpcError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class McpServer:
    """Answers MCP requests."""

    def __init__(self, gateway: Gateway, tools: ReadOnlyTools) -> None:
        self._gateway = gateway
        self._tools = tools

    async def post(self, request: Request) -> AnyReply:
        """Answer an MCP message, or a batch of them."""
        check_content_type(request)
        version = request.header(b"mcp-protocol-version")
        try:
            messages = msgspec.json.decode(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return json_reply(_error(None, PARSE_ERROR, "the body is not JSON"), status=400)
        if version in STATELESS_VERSIONS or _named_version(messages) is not None:
            return await self._post_stateless(request, messages)
        if version is not None and version not in VERSIONS:
            raise InvalidInput(
                f"MCP-Protocol-Version {version!r} is not supported; supported: "
                + ", ".join((*STATELESS_VERSIONS, *VERSIONS))
            )
        run = partial(self._run, await self._caller(request))
        if not isinstance(messages, list):
            answer = await self._answer(run, messages)
            return json_reply(answer) if answer is not None else _accepted()
        if not 0 < len(messages) <= MAX_BATCH:
            message = f"a batch has 1 to {MAX_BATCH} messages, not {len(messages)}"
            return json_reply(_error(None, INVALID_REQUEST, message), status=400)
        answers = [await self._answer(run, message) for message in messages]
        listed = [answer for answer in answers if answer is not None]
        return json_reply(listed) if listed else _accepted()

    async def _post_stateless(self, request: Request, message: object) -> AnyReply:
        """Answer a message that names the version of the protocol itself."""
        caller = await self._caller(request)

        async def run(method: str, params: Message) -> Message:
            _check_envelope(request, method, params)
            return await self._run_stateless(caller, method, params)

        answer = await self._answer(run, message)
        if answer is None:
            return _accepted()
        error = answer.get("error")
        return json_reply(answer, status=STATUS.get(error["code"], 200) if error else 200)

    async def _run_stateless(self, caller: ToolCaller, method: str, params: Message) -> Message:
        result: Message = {"ttlMs": 0, "cacheScope": "private"}
        match method:
            case "server/discover":
                result |= {
                    "supportedVersions": list(STATELESS_VERSIONS),
                    "capabilities": {"tools": {"listChanged": False}},
                    "instructions": INSTRUCTIONS,
                }
            case "tools/list":
                result |= await self._run(caller, method, params)
            case "tools/call":
                result = await self._call(caller, params)
            case _:
                raise _RpcError(METHOD_NOT_FOUND, f"unknown method {method[:64]!r}")
        server = {"name": "holdfast", "version": __version__}
        return {**result, "resultType": "complete", "_meta": {f"{META}serverInfo": server}}

    async def _caller(self, request: Request) -> ToolCaller:
        key = read_session_headers(request).key
        session: Session | None = None
        if key is not None:
            view = await self._gateway.read.session(request.tenant, key=key)
            session = view.session if view is not None else None
        if session is None:
            now = self._gateway.clock.now()
            session = begin_session(SessionId(""), request.tenant, now=now, key=key)
        return ToolCaller(tenant=request.tenant, session=session, turn_id=TurnId(""), source="user")

    async def _answer(self, run: Runner, message: object) -> Message | None:
        """Return the answer to one message; None for a notification or a response."""
        if not isinstance(message, dict):
            return _error(None, INVALID_REQUEST, "a message is an object")
        request_id, method = message.get("id"), message.get("method")
        if request_id is None or not isinstance(method, str):
            is_request = isinstance(method, str) or "result" in message or "error" in message
            return None if is_request else _error(None, INVALID_REQUEST, "method is missing")
        try:
            params = message.get("params") or {}
            if not isinstance(params, dict):
                raise _RpcError(INVALID_PARAMS, "params must be an object")
            result = await run(method, params)
        except _RpcError as error:
            return _error(request_id, error.code, error.message, error.data)
        except HoldfastError as error:
            return _error(request_id, INTERNAL_ERROR, error.message)
        except Exception:  # noqa: BLE001 - one message of a batch must not fail the others
            log.exception("mcp.failed", method=method[:64])
            return _error(request_id, INTERNAL_ERROR, "internal error")
        return {"jsonrpc": "2.0", "id": request_id, "result": result}

    async def _run(self, caller: ToolCaller, method: str, params: Message) -> Message:
        match method:
            case "initialize":
                version = params.get("protocolVersion")
                return {
                    "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {"listChanged": False}},
                    "serverInfo": {"name": "holdfast", "version": __version__},
                    "instructions": INSTRUCTIONS,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_tool_value(self._tools.tool(n)) for n in self._tools.names]}
            case "tools/call":
                return await self._call(caller, params)
            case _:
                raise _RpcError(METHOD_NOT_FOUND, f"unknown method {method[:64]!r}")

    async def _call(self, caller: ToolCaller, params: Message) -> Message:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if name not in self._tools.names:
            raise _RpcError(INVALID_PARAMS, f"unknown tool {str(name)[:64]!r}")
        if not isinstance(arguments, dict):
            raise _RpcError(INVALID_PARAMS, "arguments must be an object")
        result = await self._tools.call(caller, str(name), arguments)
        text = result.error if result.error is not None else result.output or ""
        return {
            "content": [{"type": "text", "text": text}],
            "isError": result.error is not None,
        }


def _tool_value(tool: Tool) -> Message:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "annotations": {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
    }


def _named_version(message: object) -> object:
    """Return the version of the protocol that a message names; None if it names none."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None


def _check_envelope(request: Request, method: str, params: Message) -> None:
    """Raise for a message whose version is unsupported or contradicts its headers."""
    meta = params.get("_meta")
    version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(version, str):
        raise _RpcError(INVALID_PARAMS, f"params._meta needs {META}protocolVersion")
    if f"{META}clientCapabilities" not in meta:
        raise _RpcError(INVALID_PARAMS, f"params._meta needs {META}clientCapabilities")
    expected = {b"mcp-protocol-version": version, b"mcp-method": method}
    if method == "tools/call":
        expected[b"mcp-name"] = str(params.get("name"))
    for header, value in expected.items():
        if request.header(header) != value:
            name = header.decode()
            raise _RpcError(HEADER_MISMATCH, f"the header {name} does not match the request")
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise _RpcError(UNSUPPORTED_VERSION, "unsupported protocol version", data)


def _error(request_id: object, code: int, message: str, data: object = None) -> Message:
    error: Message = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def _accepted() -> Reply:
    return Reply(b"", status=202, headers=[])
