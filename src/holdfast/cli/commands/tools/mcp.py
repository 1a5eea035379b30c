"""`holdfast mcp`: an MCP server on standard input and output, in front of a gateway."""

import json
import sys
from typing import Annotated, Any

import typer

from holdfast.cli.client.gateway_client import GatewayClient, RequestRejected
from holdfast.cli.options import ConfigFlag, UrlFlag, connect
from holdfast.cli.output.terminal import CommandFailed

PARSE_ERROR, INTERNAL_ERROR = -32700, -32603
VERSION = "io.modelcontextprotocol/protocolVersion"
"""The field with the protocol version in messages of the newer protocol."""


def mcp(
    key: Annotated[
        str | None, typer.Option(help="Session key of the conversation that the tools see.")
    ] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Serve the read-only tools to an MCP client on standard input and output."""
    client = connect(url, config)
    headers = {"X-Session-Key": key} if key is not None else {}
    for line in sys.stdin:
        if line.strip():
            answer = _forward(client, headers, line)
            if answer is not None:
                print(json.dumps(answer), flush=True)


def _forward(client: GatewayClient, headers: dict[str, str], line: str) -> Any:
    """Return the gateway's answer to one message; None if there is none."""
    try:
        message = json.loads(line)
    except ValueError:
        return _error(None, PARSE_ERROR, "the line is not JSON")
    request_id = message.get("id") if isinstance(message, dict) else None
    try:
        sent = {**headers, **_routing_headers(message)}
        with client.request("POST", "/mcp", message, sent) as response:
            raw = response.read()
        return json.loads(raw) if raw else None
    except CommandFailed as exc:
        code = exc.code if isinstance(exc, RequestRejected) else None
        code = code if isinstance(code, int) else INTERNAL_ERROR
        return _error(request_id, code, exc.message) if request_id is not None else None


def _routing_headers(message: Any) -> dict[str, str]:
    """Return the headers that must repeat fields of a message of the newer protocol."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION) if isinstance(meta, dict) else None
    if not isinstance(version, str):
        return {}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": str(message.get("method"))}
    if isinstance(params, dict) and isinstance(params.get("name"), str):
        headers["Mcp-Name"] = params["name"]
    return headers


def _error(request_id: object, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
