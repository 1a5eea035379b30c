"""Holdfast as an MCP server: POST /mcp with the built-in tools, all of which only read.

It is the stateless form of MCP's streamable HTTP: every request is answered by one JSON body, so
that no connection and no MCP session has to be kept. `X-Session-Key` names the conversation that
the tools are about; API keys are those of every other endpoint.
"""

from collections.abc import Sequence
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
"""Versions of the protocol, the newest first."""
MAX_BATCH = 32
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = (
    -32700, -32600, -32601, -32602, -32603,
)  # fmt: skip
INSTRUCTIONS = (
    "Read-only access to conversations that Holdfast stores: their state, their history and a "
    "full-text search. The header X-Session-Key names the conversation."
)
Message = dict[str, Any]


class ReadOnlyTools(Protocol):
    """The built-in tools."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools."""
        ...

    def tool(self, name: str) -> Tool:
        """Return a tool as a model is shown it."""
        ...

    async def call(self, caller: ToolCaller, name: str, arguments: dict[str, object]) -> ToolResult:
        """Run a tool."""
        ...


class _RpcError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class McpServer:
    """Answers MCP requests."""

    def __init__(self, gateway: Gateway, tools: ReadOnlyTools) -> None:
        self._gateway = gateway
        self._tools = tools

    async def post(self, request: Request) -> AnyReply:
        """Answer an MCP message, or a batch of them."""
        check_content_type(request)
        version = request.header(b"mcp-protocol-version")
        if version is not None and version not in VERSIONS:
            raise InvalidInput(
                f"MCP-Protocol-Version {version!r} is not supported; supported: "
                + ", ".join(VERSIONS)
            )
        try:
            messages = msgspec.json.decode(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return json_reply(_error(None, PARSE_ERROR, "the body is not JSON"), status=400)
        caller = await self._caller(request)
        if not isinstance(messages, list):
            answer = await self._answer(caller, messages)
            return json_reply(answer) if answer is not None else _accepted()
        if not 0 < len(messages) <= MAX_BATCH:
            message = f"a batch has 1 to {MAX_BATCH} messages, not {len(messages)}"
            return json_reply(_error(None, INVALID_REQUEST, message), status=400)
        answers = [await self._answer(caller, message) for message in messages]
        listed = [answer for answer in answers if answer is not None]
        return json_reply(listed) if listed else _accepted()

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

    async def _answer(self, caller: ToolCaller, message: object) -> Message | None:
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
            result = await self._run(caller, method, params)
        except _RpcError as error:
            return _error(request_id, error.code, error.message)
        except HoldfastError as error:
            return _error(request_id, INTERNAL_ERROR, error.message)
        except Exception:  # noqa: BLE001 - one message of a batch must not fail the others
            log.exception("mcp.failed", method=method[:64])
            return _error(request_id, INTERNAL_ERROR, "internal error")
        return {"jsonrpc": "2.0", "id": request_id, "result": result}

    async def _run(self, caller: ToolCaller, method: str, params: Message) -> Message:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
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


def _error(request_id: object, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _accepted() -> Reply:
    return Reply(b"", status=202, headers=[])
