"""Endpoints about running work and its cost: workers and lanes, usage, doctor's findings."""

import time
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.usage_sums import UsageSum
from holdfast.http.admin.console import LoadFiles
from holdfast.http.request.auth import require_admin
from holdfast.http.request.pagination import read_choice, read_flag
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.provider import Upstreams, UpstreamStatus
from holdfast.ports.reports import INTERVAL_SECONDS, Interval, LaneView, Reports

MAX_LANES = 500
MAX_INTERVALS = 1000
DEFAULT_DAYS = 30
LATEST = 253_402_300_800
"""The end of the year 9999."""


class Diagnose(Protocol):
    """Checks the store."""

    async def __call__(self, *, is_deep: bool = False) -> dict[str, Any]:
        """Return what was found and looked at, as JSON; a deep check may still run then."""
        ...


class AdminServices(msgspec.Struct, frozen=True):
    """Services of the admin endpoints besides the engine."""

    reports: Reports
    diagnose: Diagnose
    console: LoadFiles | None = None
    """Loads the console's static files; None if the console is off."""


class OperationsApi:
    """GET /v1/workers, /v1/upstreams, /v1/usage and /v1/doctor."""

    def __init__(self, services: AdminServices, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._reports = services.reports
        self._diagnose = services.diagnose

    async def workers(self, request: Request) -> AnyReply:
        """Return the workers, and the lanes in use with their waiting turns."""
        require_admin(request)
        workers = await self._reports.workers()
        lanes = await self._reports.lanes(MAX_LANES + 1)
        return json_reply(
            {
                "object": "workers",
                "workers": [msgspec.to_builtins(worker) for worker in workers],
                "lanes": [_lane_value(lane) for lane in lanes[:MAX_LANES]],
                "has_more_lanes": len(lanes) > MAX_LANES,
            }
        )

    async def upstreams(self, request: Request) -> AnyReply:
        """Return the upstreams as this process has seen them since it started."""
        require_admin(request)
        statuses = self._upstreams.statuses()
        return json_reply({"object": "list", "data": [_upstream_value(one) for one in statuses]})

    async def doctor(self, request: Request) -> AnyReply:
        """Return what a check of the store found; a check is repeated after some seconds."""
        require_admin(request)
        is_deep = read_flag(request.query(), "deep")
        return json_reply({"object": "list", **await self._diagnose(is_deep=is_deep)})

    async def usage(self, request: Request) -> AnyReply:
        """Return tokens, turns, heals and latency by interval, tenant and model."""
        require_admin(request)
        query = request.query()
        name = read_choice(query, "interval", tuple(INTERVAL_SECONDS)) or "day"
        interval: Interval = "hour" if name == "hour" else "day"
        now = time.time()
        until = _read_time(query, "to", now + 1)
        since = _read_time(query, "from", until - DEFAULT_DAYS * 86400)
        if not since < until:
            raise InvalidInput("from must be before to", param="from")
        if (until - since) / INTERVAL_SECONDS[interval] > MAX_INTERVALS:
            raise InvalidInput(f"at most {MAX_INTERVALS} intervals at once", param="interval")
        report = await self._reports.usage(since, until, interval)
        return json_reply(
            {
                "object": "usage",
                "from": report.since,
                "to": report.until,
                "interval": interval,
                "is_complete": report.is_complete,
                "complete_until": int(min(report.complete_until or now, report.until)),
                "data": [_usage_value(row) for row in report.rows],
            }
        )


def _read_time(query: dict[str, str], name: str, default: float) -> float:
    """Return a time given in seconds since 1970 or as a date or time in ISO format."""
    raw = query.get(name)
    if raw is None or raw == "":
        return default
    try:
        if raw.isdecimal():
            seconds = float(raw)
        else:
            moment = datetime.fromisoformat(raw)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds <= LATEST:
        raise InvalidInput(f"{name} must be seconds since 1970 or an ISO date", param=name)
    return seconds


def _lane_value(lane: LaneView) -> dict[str, Any]:
    return {
        "session_id": lane.session_id,
        "tenant": lane.tenant,
        "key": lane.key,
        "turn_id": lane.turn_id,
        "run_id": lane.run_id,
        "worker": lane.worker,
        "state": "running" if lane.run_id is not None else "requires_action",
        "hold_until": int(lane.hold_until) if lane.hold_until is not None else None,
        "waiting_turns": lane.waiting_turns,
        "since": int(lane.since) if lane.since is not None else None,
    }


def _upstream_value(status: UpstreamStatus) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(status)
    value["answered_at"] = int(status.answered_at) if status.answered_at is not None else None
    failure = value["last_failure"]
    if failure is not None:
        failure["at"] = int(failure["at"])
    state = "fails" if status.failures else "answers" if status.answered_at else "unused"
    return {"object": "upstream", "state": state, **value}


def _usage_value(row: UsageSum) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(row)
    del value["latencies"], value["longest_ms"]
    value["latency_ms"] = {
        "count": sum(row.latencies.values()),
        "p50": row.percentile(0.5),
        "p95": row.percentile(0.95),
        "max": row.longest_ms if row.latencies else None,
    }
    return value
