"""`holdfast status`: the state of a gateway on one screen."""

import re
from typing import Any

from holdfast.cli.client.gateway_client import GatewayClient, RequestRejected
from holdfast.cli.options import ConfigFlag, JsonFlag, UrlFlag, connect
from holdfast.cli.output.formatting import print_sessions
from holdfast.cli.output.terminal import CommandFailed, print_json, print_line, print_pairs

MAX_RUNNING_SHOWN = 20
_SAMPLE = re.compile(r"^(\w+?)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)


def status(config: ConfigFlag = None, url: UrlFlag = None, as_json: JsonFlag = False) -> None:
    """Show whether a gateway is ready, what runs, and what failed."""
    state = collect_status(connect(url, config))
    if as_json:
        print_json(state)
        return
    counts = state["since_start"]
    print_pairs(
        [
            ("gateway", state["url"]),
            ("version", state["version"]),
            ("state", state["state"]),
            *_model_rows(state["models"], state["models_unavailable"]),
            *_server_rows(state["tools"]),
            *_channel_rows(state["channels"]),
            ("runs since start", _format_counts(counts, "runs")),
            ("heals since start", _format_counts(counts, "heals")),
        ]
    )
    print_line("\nrunning now")
    print_sessions(state["running"])


def collect_status(client: GatewayClient) -> dict[str, Any]:
    """Return what a gateway reports about itself."""
    client.get("/healthz")
    models, unavailable = _models(client)
    return {
        "url": client.url,
        "version": client.get("/openapi.json")["info"]["version"],
        "state": _readiness(client),
        "models": models,
        "models_unavailable": unavailable,
        "tools": _tools(client),
        "channels": _channels(client),
        "since_start": _metrics(client),
        "running": list(client.list_all("/v1/sessions", limit=MAX_RUNNING_SHOWN, status="running")),
    }


def _models(client: GatewayClient) -> tuple[list[str], list[str]]:
    """Return the models, and the errors of upstreams that could not list theirs."""
    try:
        listed = client.get("/v1/models")
    except CommandFailed as exc:
        return [], [exc.message]
    failed = listed.get("unavailable", ())
    return (
        [model["id"] for model in listed["data"]],
        [f"upstream {upstream['upstream']}: {upstream['message']}" for upstream in failed],
    )


def _model_rows(models: list[str], unavailable: list[str]) -> list[tuple[str, str]]:
    nothing = "unknown" if unavailable else "none"
    rows = [("models", ", ".join(models) or nothing)]
    return rows + [("unavailable", reason) for reason in unavailable]


def _tools(client: GatewayClient) -> list[dict[str, Any]]:
    """Return the tools that the gateway runs, with the state of their servers."""
    tools: list[dict[str, Any]] = client.get("/v1/tools")["data"]
    return tools


def _server_rows(tools: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a row for each MCP server; the built-in tools are always available."""
    rows: list[tuple[str, str]] = []
    for server in tools[1:]:
        detail = server["error"] or f"{server['tools']} tool(s)"
        rows.append((f"mcp {server['name']}", f"{server['state']}, {detail}"))
    return rows


def _channels(client: GatewayClient) -> list[dict[str, Any]]:
    """Return the channels with their states; empty without an admin key."""
    try:
        channels: list[dict[str, Any]] = client.get("/v1/channels")["data"]
    except RequestRejected as exc:
        if exc.status in (403, 404):
            return []
        raise
    return channels


def _channel_rows(channels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for channel in channels:
        outbox = ", ".join(f"{count} {state}" for state, count in channel["outbox"].items())
        detail = f"{channel['state']}, outbox: {outbox}" if outbox else channel["state"]
        rows.append((f"{channel['kind']} {channel['name']}", detail))
    return rows


def _readiness(client: GatewayClient) -> str:
    try:
        client.get("/readyz")
    except RequestRejected as exc:
        return f"not ready: {exc.message}"
    return "ready"


def _metrics(client: GatewayClient) -> dict[str, dict[str, int]] | None:
    """Return the counters of the gateway's process; None without an admin key."""
    try:
        text = client.text("/metrics")
    except RequestRejected as exc:
        if exc.status in (403, 404):
            return None
        raise
    counts: dict[str, dict[str, int]] = {"runs": {}, "heals": {}}
    names = {"holdfast_runs_ended_total": "runs", "holdfast_heals_total": "heals"}
    for name, labels, value in _SAMPLE.findall(text):
        if name in names:
            counts[names[name]][labels.partition('"')[2].strip('"')] = int(float(value))
    return counts


def _format_counts(counts: dict[str, dict[str, int]] | None, name: str) -> str:
    if counts is None:
        return "needs an admin key"
    return ", ".join(f"{count} {label}" for label, count in counts[name].items()) or "none"
