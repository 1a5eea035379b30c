"""`holdfast status`: one screen about a gateway, from what it says now."""

import re
from typing import Any

from holdfast.cli.client.gateway_client import GatewayClient, Refused
from holdfast.cli.options import JsonFlag, UrlFlag, gateway
from holdfast.cli.output.formatting import say_sessions
from holdfast.cli.output.terminal import CommandFailed, say, say_json, say_pairs

BUSY_SHOWN = 20
_SAMPLE = re.compile(r"^(\w+?)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)


def status(url: UrlFlag = None, as_json: JsonFlag = False) -> None:
    """Show how a gateway is: ready or not, what runs, what failed."""
    told = look(gateway(url))
    if as_json:
        say_json(told)
        return
    counts = told["since_start"]
    say_pairs(
        [
            ("gateway", told["url"]),
            ("version", told["version"]),
            ("state", told["state"]),
            *_models_told(told["models"], told["models_unavailable"]),
            ("runs since start", _counted(counts, "runs")),
            ("heals since start", _counted(counts, "heals")),
        ]
    )
    say("\nrunning now")
    say_sessions(told["running"])


def look(client: GatewayClient) -> dict[str, Any]:
    """Return what a gateway says about itself."""
    client.get("/healthz")
    models, unavailable = _models(client)
    return {
        "url": client.url,
        "version": client.get("/openapi.json")["info"]["version"],
        "state": _readiness(client),
        "models": models,
        "models_unavailable": unavailable,
        "since_start": _metrics(client),
        "running": list(client.every("/v1/sessions", limit=BUSY_SHOWN, status="running")),
    }


def _models(client: GatewayClient) -> tuple[list[str], list[str]]:
    """Return the models there are, and which upstreams could not be asked for theirs, and why."""
    try:
        listed = client.get("/v1/models")
    except CommandFailed as exc:
        return [], [exc.message]
    missing = listed.get("unavailable", ())
    return (
        [model["id"] for model in listed["data"]],
        [f"upstream {one['upstream']}: {one['message']}" for one in missing],
    )


def _models_told(models: list[str], unavailable: list[str]) -> list[tuple[str, str]]:
    nothing = "unknown" if unavailable else "none"
    told = [("models", ", ".join(models) or nothing)]
    return told + [("not asked", why) for why in unavailable]


def _readiness(client: GatewayClient) -> str:
    try:
        client.get("/readyz")
    except Refused as exc:
        return f"not ready: {exc.message}"
    return "ready"


def _metrics(client: GatewayClient) -> dict[str, dict[str, int]] | None:
    """Return the counts of this process; only an admin may see them once there are keys."""
    try:
        text = client.text("/metrics")
    except Refused as exc:
        if exc.status in (403, 404):
            return None
        raise
    counts: dict[str, dict[str, int]] = {"runs": {}, "heals": {}}
    names = {"holdfast_runs_ended_total": "runs", "holdfast_heals_total": "heals"}
    for name, labels, value in _SAMPLE.findall(text):
        if name in names:
            counts[names[name]][labels.partition('"')[2].strip('"')] = int(float(value))
    return counts


def _counted(counts: dict[str, dict[str, int]] | None, name: str) -> str:
    if counts is None:
        return "needs an admin key"
    return ", ".join(f"{count} {what}" for what, count in counts[name].items()) or "none"
