"""Check a whole configuration in practice, for `holdfast config check`.

Nothing is changed: no store is created, no message is sent, no turn is run.
"""

import asyncio
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.channel_services import platform_proxy
from holdfast.channels.open import open_channel
from holdfast.channels.settings import ChannelSettings
from holdfast.cli.output.masking import create_key_hint, mask_url
from holdfast.core.errors import HoldfastError, InvalidSetting
from holdfast.core.healing.redaction import redact
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.doctor.configuration import CheckResult, check_store, check_upstreams
from holdfast.engine.clock import SystemClock
from holdfast.ports.http_client import HttpCaller, HttpUnavailable
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.providers.routing import serves
from holdfast.schedules.settings import ScheduleSettings
from holdfast.schedules.times import next_time, time_name
from holdfast.settings import Settings
from holdfast.settings.target import server_url
from holdfast.stores.inspect import inspect_store
from holdfast.stores.open import open_store_to_read
from holdfast.tools.builtin import DESCRIPTIONS

CHECK_SECONDS = 15.0
LOCAL_SECONDS = 5.0
"""How long a gateway on this machine may take to answer."""


async def check_configuration(settings: Settings) -> list[CheckResult]:
    """Check everything that a configuration names."""
    http = PlainHttpCaller(platform_proxy)
    try:
        groups = await asyncio.gather(
            check_store(settings.store.url, mask_url(settings.store.url)),
            check_server(settings, http),
            check_upstreams(settings.upstreams),
            check_otel(settings, http),
            check_mcp(settings),
            check_channels(settings.channels, http),
        )
    finally:
        await http.close()
    return [
        *(result for group in groups for result in group),
        *check_keys(settings),
        *check_schedules(settings),
        *check_webhooks(settings),
        *check_models(settings),
        *check_tool_names(settings),
        *check_archive(settings),
    ]


# ── the server ──────────────────────────────────────────────────────────────────────────────


async def check_server(settings: Settings, http: HttpCaller) -> list[CheckResult]:
    """Check that the address can be bound, and whether it needs an API key."""
    server = settings.server
    subject = f"server {server.host}:{server.port}"
    problem = await _key_problem(settings)
    if problem is not None:
        return [CheckResult(subject=subject, is_ok=False, detail=problem)]
    in_use = _bind_problem(server.host, server.port)
    if in_use is None:
        return [CheckResult(subject=subject, is_ok=True, detail="free")]
    is_ours = in_use.errno == errno.EADDRINUSE and await _is_gateway(settings, http)
    detail = "a gateway answers there" if is_ours else in_use.strerror or str(in_use)
    return [CheckResult(subject=subject, is_ok=is_ours, detail=detail)]


async def _key_problem(settings: Settings) -> str | None:
    """Return why the address must not be listened on, or None."""
    has_key = any(key.key for key in settings.keys)
    if settings.server.is_loopback or has_key or await _has_stored_key(settings.store.url):
        return None
    return (
        f"{settings.server.host} is reachable from other machines and there is no API key: "
        f"{create_key_hint(settings.store.url)}, or listen on 127.0.0.1"
    )


def check_keys(settings: Settings) -> list[CheckResult]:
    """Check that the variables of `[[key]]` tables are set."""
    return [
        CheckResult(
            subject=f"key {key.key_env}",
            is_ok=bool(key.key),
            detail="set" if key.key else "the environment variable is not set",
        )
        for key in settings.keys
    ]


async def _has_stored_key(url: str) -> bool:
    """Return whether the store has an API key; a store that must be migrated is not opened."""
    try:
        inspection = await inspect_store(url)
        if not inspection.exists or inspection.is_bare or inspection.pending or inspection.refusal:
            return False
        store = await open_store_to_read(url, clock=SystemClock())
        try:
            return any(key.revoked_at is None for key in await store.read.api_keys())
        finally:
            await store.close()
    except (HoldfastError, OSError):
        return False  # the check of the store reports the reason


def _bind_problem(host: str, port: int) -> OSError | None:
    from holdfast.http.server.run import open_listener

    try:
        open_listener(host, port).close()
    except OSError as exc:
        return exc
    return None


async def _is_gateway(settings: Settings, http: HttpCaller) -> bool:
    try:
        url = f"{server_url(settings.server)}/healthz"
        reply = await http.call("GET", url, seconds=LOCAL_SECONDS)
    except (HttpUnavailable, InvalidSetting):
        return False
    return reply.status == 200 and reply.body == b'{"status":"ok"}'


# ── observability ───────────────────────────────────────────────────────────────────────────


async def check_otel(settings: Settings, http: HttpCaller) -> list[CheckResult]:
    """Check that the collector accepts traces by exporting an empty one."""
    endpoint = settings.otel.endpoint
    if not endpoint:
        return []
    problem = await _export_problem(endpoint, http)
    detail = problem or "accepts traces"
    subject = f"otel {mask_url(endpoint)}"
    return [CheckResult(subject=subject, is_ok=problem is None, detail=detail)]


async def _export_problem(endpoint: str, http: HttpCaller) -> str | None:
    from importlib.util import find_spec

    if find_spec("opentelemetry") is None:
        return "needs the extra otel: pip install 'holdfast[otel]'"
    url = f"{endpoint.rstrip('/')}/v1/traces"
    try:
        # An empty message is a valid export request without spans.
        reply = await http.call(
            "POST",
            url,
            headers={"content-type": "application/x-protobuf"},
            body=b"",
            seconds=CHECK_SECONDS,
        )
    except HttpUnavailable as exc:
        return exc.message
    return None if reply.status < 300 else f"{url} answers with status {reply.status}"


# ── channels, tools and schedules ───────────────────────────────────────────────────────────


async def check_channels(
    channels: Sequence[ChannelSettings], http: HttpCaller
) -> list[CheckResult]:
    """Check every channel by `Channel.check`: the platform answers and accepts the credentials."""
    return list(await asyncio.gather(*(_check_channel(channel, http) for channel in channels)))


async def _check_channel(settings: ChannelSettings, http: HttpCaller) -> CheckResult:
    subject = f"channel {settings.name}"
    unset = [name for name in settings.variables if not os.environ.get(name)]
    if unset:
        detail = f"the environment variable {unset[0]} is not set"
        return CheckResult(subject=subject, is_ok=False, detail=detail)
    try:
        channel = open_channel(settings, http)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                account = await channel.check()
        finally:
            await channel.close()
    except TimeoutError:
        detail = f"no answer within {CHECK_SECONDS:.0f} s"
        return CheckResult(subject=subject, is_ok=False, detail=detail)
    except HoldfastError as exc:
        message = redact(exc.message, settings.token, settings.secret)
        return CheckResult(subject=subject, is_ok=False, detail=message)
    if settings.receive == "webhook" and not settings.secret:
        detail = "receive = 'webhook' needs signing_secret_env: every request would be rejected"
        return CheckResult(subject=subject, is_ok=False, detail=detail)
    return CheckResult(subject=subject, is_ok=True, detail=f"{settings.kind} answers: {account}")


async def check_mcp(settings: Settings) -> list[CheckResult]:
    """Start every MCP server and list its tools."""
    if not settings.mcp:
        return []
    from holdfast.tools.mcp.check import check_servers

    return [
        CheckResult(subject=f"mcp {result.name}", is_ok=result.is_ok, detail=result.detail)
        for result in await check_servers(settings.mcp)
    ]


def check_schedules(settings: Settings) -> list[CheckResult]:
    """Check the channels and tools of schedules, and report when each runs next."""
    channels = {channel.name for channel in settings.channels}
    return [_check_schedule(schedule, channels) for schedule in settings.schedules]


def _check_schedule(schedule: ScheduleSettings, channels: set[str]) -> CheckResult:
    subject = f"schedule {schedule.name}"
    deliver = schedule.deliver
    if deliver is not None and deliver.channel not in channels:
        detail = f"deliver.channel: there is no [[channel]] {deliver.channel!r}"
        return CheckResult(subject=subject, is_ok=False, detail=detail)
    now = time.time()
    upcoming = next_time(schedule.spec(), now, created_at=now)
    detail = f"runs next at {time_name(upcoming)}" if upcoming is not None else "its time is past"
    return CheckResult(subject=subject, is_ok=upcoming is not None, detail=detail)


def check_webhooks(settings: Settings) -> list[CheckResult]:
    """Check that every webhook has a secret; its server is not called."""
    results = []
    for webhook in settings.webhooks:
        detail = f"the environment variable {webhook.secret_env} is not set"
        if webhook.secret:
            detail = f"signs facts for {urlsplit(webhook.url).netloc}"
        subject = f"webhook {webhook.name}"
        results.append(CheckResult(subject=subject, is_ok=bool(webhook.secret), detail=detail))
    return results


def check_models(settings: Settings) -> list[CheckResult]:
    """Check that an upstream serves every model named in a table; the demo model serves all."""
    upstreams, results = settings.upstreams, []
    tables = [("channel", table.name, table.model) for table in settings.channels]
    tables += [("schedule", table.name, table.model) for table in settings.schedules]
    for kind, name, model in tables:
        if upstreams and not any(serves(upstream, model) for upstream in upstreams):
            subject, detail = f"model of {kind} {name}", f"no upstream serves {model!r}"
            results.append(CheckResult(subject=subject, is_ok=False, detail=detail))
    return results


def check_tool_names(settings: Settings) -> list[CheckResult]:
    """Check that every tool named in a table exists, and that its tenant has it."""
    known = {*DESCRIPTIONS, *(f"mcp:{server.name}" for server in settings.mcp)}
    results = []
    for subject, tenant, names in _named_tools(settings):
        unknown = [name for name in names if name not in known]
        foreign = _foreign_tools(settings, tenant, names)
        if unknown:
            detail = f"unknown: {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        elif foreign and tenant is None:
            detail = f"{foreign}; requests of other tenants go without"
        elif foreign:
            detail = f"{foreign}, not {tenant}"
        else:
            continue
        is_ok = not unknown and tenant is None
        results.append(
            CheckResult(subject=f"tools of {subject}", is_ok=is_ok, detail=detail, is_warning=is_ok)
        )
    return results


def _foreign_tools(settings: Settings, tenant: str | None, names: Sequence[str]) -> str:
    """Return whose the named servers are that a tenant lacks; without one, those of no default."""
    owners: dict[str, list[str]] = {}
    for server in settings.mcp:
        owners.setdefault(f"mcp:{server.name}", []).append(server.tenant)
    return "; ".join(
        f"{name} belongs to tenant {', '.join(owners[name])}"
        for name in names
        if name in owners and (tenant or DEFAULT_TENANT) not in owners[name]
    )


def _named_tools(settings: Settings) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Yield each table with tools, its tenant, and their names; upstreams serve all tenants."""
    for upstream in settings.upstreams:
        yield f"upstream {upstream.name}", None, upstream.tools
    for channel in settings.channels:
        yield f"channel {channel.name}", channel.tenant, channel.tools
    for schedule in settings.schedules:
        yield f"schedule {schedule.name}", schedule.tenant, schedule.tools


def check_archive(settings: Settings) -> list[CheckResult]:
    """Check that retention can write its archive."""
    if not settings.retention.archive:
        return []
    folder = Path(settings.retention.archive)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    is_ok = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    detail = "writable" if is_ok else f"{existing} is not a writable directory"
    return [CheckResult(subject=f"archive {folder}", is_ok=is_ok, detail=detail)]
