"""An MCP server on standard input and output that misbehaves on request.

`python odd_mcp_server.py STATE` appends every call that it receives to the file STATE. With a
second argument, `malformed`, some tools of its list are malformed. It implements the protocol
itself, so that it starts quickly and can break every rule.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Return the text.", "inputSchema": SCHEMA,
     "annotations": {"readOnlyHint": True}},
    {"name": "write", "description": "Write the text.", "inputSchema": SCHEMA},
    {"name": "slow", "description": "Answer late, unless it is cancelled.", "inputSchema": SCHEMA},
    {"name": "die", "description": "End the process.", "inputSchema": SCHEMA},
    {"name": "huge", "description": "Return very much.", "inputSchema": SCHEMA},
    {"name": "endless", "description": "Send a line without an end.", "inputSchema": SCHEMA},
    {"name": "garbage", "description": "Send what is not JSON first.", "inputSchema": SCHEMA},
    {"name": "hang", "description": "Answer nothing any more.", "inputSchema": SCHEMA},
    {"name": "surrogate", "description": "Send half a character.", "inputSchema": SCHEMA},
    {"name": "latin", "description": "Send text that is not UTF-8.", "inputSchema": SCHEMA},
    {"name": "invalid", "description": "Answer with what is no answer.", "inputSchema": SCHEMA},
    {"name": "fail", "description": "Report an error.", "inputSchema": SCHEMA},
    {"name": "env", "description": "Return the environment.", "inputSchema": SCHEMA},
    {"name": "ask", "description": "Ask the client for what it must not give.",
     "inputSchema": SCHEMA},
    {"name": "grow", "description": "Add a tool to the list.", "inputSchema": SCHEMA},
    {"name": "grow_late", "description": "Add a tool while the list is read.",
     "inputSchema": SCHEMA},
    {"name": "../../etc/passwd", "description": "A name that is a path.", "inputSchema": SCHEMA},
    {"name": "x" * 200, "description": "A name that is too long.", "inputSchema": SCHEMA},
    {"name": "x" * 201, "description": "Another one.", "inputSchema": SCHEMA},
    {"name": "echo", "description": "A name that is taken.", "inputSchema": SCHEMA},
]  # fmt: skip
MALFORMED: list[Any] = [
    {"name": "schemaless", "description": "A tool without a schema."},
    {"name": "text_schema", "inputSchema": "an object"},
    {"description": "A tool without a name.", "inputSchema": SCHEMA},
    "a tool",
]
if sys.argv[2:] == ["malformed"]:
    TOOLS[2:2] = MALFORMED
_cancelled: set[Any] = set()
_replies: queue.Queue[dict[str, Any]] = queue.Queue()
_hung = threading.Event()
_grows_late = threading.Event()
_lock = threading.Lock()
GROWN = {"name": "grown", "description": "New.", "inputSchema": SCHEMA}


def send(value: dict[str, Any]) -> None:
    """Write one message."""
    if _hung.is_set():
        return
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **value}) + "\n")
        sys.stdout.flush()


def note(text: str) -> None:
    """Append a line to the state file."""
    with Path(sys.argv[1]).open("a") as file:
        file.write(text + "\n")


def text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """Return the result of a call."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def call(request_id: Any, name: str, arguments: dict[str, Any]) -> None:
    """Run a tool and answer, or misbehave."""
    note(name)
    if name == "slow":
        while request_id not in _cancelled:
            time.sleep(0.01)
        note("cancelled")
        return
    if name == "latin":
        answer_in_latin(request_id)
        return
    if name == "ask":
        send({"id": request_id, "result": text_result(json.dumps(ask_client()))})
        return
    misbehave(name)
    result = text_result(str(arguments.get("text", "")))
    match name:
        case "huge":
            result = text_result("h" * 1_000_000)
        case "fail":
            result = text_result("no such file", is_error=True)
        case "env":
            result = text_result(json.dumps(dict(os.environ)))
        case "surrogate":
            result = text_result("a\ud800b")
        case "invalid":
            result = {"content": 7}
        case _:
            pass
    send({"id": request_id, "result": result})


def ask_client() -> dict[str, int | None]:
    """Return the error codes with which the client declines requests, by method."""
    message = {"role": "user", "content": {"type": "text", "text": "hi"}}
    schema = {"type": "object", "properties": {}}
    asked: dict[str, dict[str, Any]] = {
        "sampling/createMessage": {"messages": [message], "maxTokens": 5},
        "elicitation/create": {"message": "Your password?", "requestedSchema": schema},
        "roots/list": {},
    }
    declined = {}
    for method, params in asked.items():
        send({"id": method, "method": method, "params": params})
        declined[method] = _replies.get(timeout=60).get("error", {}).get("code")
    return declined


def answer_in_latin(request_id: Any) -> None:
    """Answer in ISO 8859-1, like a server that copies a file."""
    value = {"jsonrpc": "2.0", "id": request_id, "result": text_result("caf\xe9")}
    with _lock:
        sys.stdout.flush()
        sys.stdout.buffer.write(json.dumps(value, ensure_ascii=False).encode("latin-1") + b"\n")
        sys.stdout.buffer.flush()


def misbehave(name: str) -> None:
    """Do what a tool must not do before it answers."""
    match name:
        case "die":
            os._exit(3)
        case "endless":
            with _lock:
                for _ in range(20):
                    sys.stdout.write("e" * 1024 * 1024)
                sys.stdout.flush()
        case "garbage":
            with _lock:
                sys.stdout.write("this is not JSON\n")
        case "hang":
            _hung.set()
        case "grow":
            TOOLS.append(GROWN)
            send({"method": "notifications/tools/list_changed"})
        case "grow_late":
            _grows_late.set()
            send({"method": "notifications/tools/list_changed"})
        case _:
            pass


def answer(message: dict[str, Any]) -> None:
    """Answer one message."""
    if _hung.is_set():
        return
    method, request_id = message.get("method"), message.get("id")
    if method is None:
        _replies.put(message)
        return
    params = message.get("params") or {}
    match method:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "odd", "version": "1"}
            version = params.get("protocolVersion", "2025-06-18")
            result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            send({"id": request_id, "result": result})
        case "tools/list":
            listed = list(TOOLS)
            if _grows_late.is_set():
                _grows_late.clear()
                TOOLS.append(GROWN)
                send({"method": "notifications/tools/list_changed"})
            send({"id": request_id, "result": {"tools": listed}})
        case "ping":
            send({"id": request_id, "result": {}})
        case "tools/call":
            arguments = (request_id, params["name"], params.get("arguments") or {})
            threading.Thread(target=call, args=arguments, daemon=True).start()
        case "notifications/cancelled":
            _cancelled.add(params.get("requestId"))
        case _ if request_id is not None:
            send({"id": request_id, "error": {"code": -32601, "message": "unknown method"}})
        case _:
            pass


def main() -> None:
    """Answer messages until the input ends."""
    note(f"started {os.getpid()}")
    for line in sys.stdin:
        answer(json.loads(line))


if __name__ == "__main__":
    main()
