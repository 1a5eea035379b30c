"""An MCP server over HTTP in this process: with sessions that it can lose, or without any."""

import asyncio
import json
from typing import Any

TOOL = {"name": "echo", "description": "Return the text.", "inputSchema": {"type": "object"}}
MODERN = "2026-07-28"


class HttpMcpServer:
    """Answers every request with one JSON body; `forget` ends all sessions."""

    def __init__(self, *, has_sessions: bool = True, lost_status: int = 404) -> None:
        self.has_sessions = has_sessions
        self.lost_status = lost_status
        self.fault: str | None = None
        """What happens to each call after it took effect; see `_misbehave`."""
        self.effects = 0
        """How many calls took effect."""
        self.methods: list[str] = []
        self.sessions: set[str] = set()
        self.port = 0
        self._begun = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "HttpMcpServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def stop_listening(self) -> None:
        """Refuse new connections."""
        assert self._server is not None
        self._server.close()

    def forget(self) -> None:
        """Lose all sessions, as a restart would."""
        self.sessions.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status, more, answer = 405, "", b""
        if head[0].startswith("POST"):
            message = json.loads(body)
            if message["method"] == "tools/call" and self.fault is not None:
                self.methods.append("tools/call")
                self.effects += 1
                writer.write(_misbehave(self.fault, message["id"]))
                await writer.drain()
                writer.close()
                return
            status, more, value = self._answer(message, headers.get("mcp-session-id"))
            answer = json.dumps(value).encode() if value is not None else b""
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}"
            f"content-length: {len(answer)}\r\nconnection: close\r\n\r\n".encode()
            + answer
        )
        await writer.drain()
        writer.close()

    def _answer(self, message: dict[str, Any], session: str | None) -> tuple[int, str, Any]:
        method = message["method"]
        self.methods.append(method)
        if "id" not in message:
            return 202, "", None
        if self.has_sessions and method == "initialize":
            self._begun += 1
            name = f"s{self._begun}"
            self.sessions.add(name)
            return 200, f"mcp-session-id: {name}\r\n", self._result(message)
        if self.has_sessions and method != "server/discover" and session not in self.sessions:
            return self.lost_status, "", {"wrong": "session"}
        return 200, "", self._result(message)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] | None = None
        info = {"name": "http", "version": "1"}
        match message["method"]:
            case "initialize" if self.has_sessions:
                result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                          "serverInfo": info}  # fmt: skip
            case "server/discover" if not self.has_sessions:
                result = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            case "ping" if self.has_sessions:
                result = {}
            case "tools/list":
                result = {"tools": [TOOL]}
            case "tools/call":
                text = message["params"]["arguments"].get("text", "")
                result = {"content": [{"type": "text", "text": text}]}
            case _:
                pass
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        if not self.has_sessions:
            result = {**result, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _misbehave(fault: str, request_id: Any) -> bytes:
    """Return what is written to the connection, which is closed behind it."""
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32602, "message": "no account"}}
    said = json.dumps(error)
    unnamed = json.dumps({**error, "id": None})
    proxy = {"error": {"code": 502, "message": "Bad Gateway", "status": "UNAVAILABLE"}}
    answers = {
        "dies": b"",
        "500 HTML": _http(500, "text/html", "<h1>Internal Server Error</h1>"),
        "500 JSON": _http(500, "application/json", '{"detail": "Internal Server Error"}'),
        "504 of a proxy": _http(504, "text/plain", "upstream timed out"),
        "HTML": _http(200, "text/html", "<h1>Welcome</h1>"),
        "202": _http(202, "text/plain", ""),
        "no JSON-RPC": _http(200, "application/json", '{"done": true}'),
        "half a body": _http(200, "application/json", said)[:-20],
        "502 JSON of a proxy": _http(502, "application/json", json.dumps(proxy)),
        "200 JSON of a proxy": _http(200, "application/json", json.dumps(proxy)),
        "500 about no request": _http(500, "application/json", unnamed),
        "500 with a stream": _http(500, "text/event-stream", f"data: {said}\n\n"),
        "a stream of other JSON": _http(200, "text/event-stream", 'data: {"done": true}\n\n'),
        "a stream that ends": _http(200, "text/event-stream", ": hello\n\n"),
        "a stream that breaks": _http(200, "text/event-stream", f"data: {said}\n\n")[:-20],
        "error": _http(200, "application/json", said),
        "error with 400": _http(400, "application/json", said),
        "error in a stream": _http(200, "text/event-stream", f"data: {said}\n\n"),
    }
    return answers[fault]


def _http(status: int, kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()
