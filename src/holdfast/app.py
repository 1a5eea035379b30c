"""Compose the parts: open a store, start the engine on it, put the HTTP API in front."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, Tenant, read_tenant
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.logging import log
from holdfast.engine.maintenance.search_indexer import SearchIndexer
from holdfast.engine.maintenance.usage_counter import UsageCounter
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.gateway import Gateway, Handler
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.settings import LaneSettings, RetentionSettings
from holdfast.engine.turns.executor import TurnExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.ports.clock import Clock, Ids
from holdfast.ports.meter import Meter
from holdfast.ports.session_runtimes import SessionRuntimes
from holdfast.ports.store import Store
from holdfast.providers.settings import is_name
from holdfast.settings import Settings
from holdfast.stores.open import open_store, open_store_to_read, sqlite_path
from holdfast.stores.sql.store import SqlStore
from holdfast.tools.builtin import BuiltinTools
from holdfast.tools.memory import SessionMemory
from holdfast.tools.toolbox import GatewayTools

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from holdfast.channel_services import ChannelServices
    from holdfast.console.files import StaticFile
    from holdfast.doctor.findings import Finding
    from holdfast.engine.embedded.api import Holdfast
    from holdfast.http.admin.operations import AdminServices
    from holdfast.http.app import Application, Services
    from holdfast.http.request.auth import HttpConfig
    from holdfast.http.server.protocol import ConnectionLimits
    from holdfast.observability.metrics import PrometheusMeter
    from holdfast.ports.channel import ChannelDirectory, Transcriber
    from holdfast.ports.schedules import ScheduleDirectory
    from holdfast.providers.routing import UpstreamRouter


@asynccontextmanager
async def open(  # noqa: A001 - the contract's name, always used as holdfast.open
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    lanes: LaneSettings | None = None,
    reset: ResetPolicy = NEVER,
    handler: Handler | None = None,
) -> "AsyncIterator[Holdfast]":
    """Open a store and work on it as a worker until the block ends.

    `handler` runs background, cron and channel turns that a crash left behind. Without one they
    stay interrupted until they are sent again.
    """
    from holdfast.engine.embedded.api import Holdfast
    from holdfast.engine.embedded.validation import require_instance

    owner = read_tenant(tenant)
    require_instance("reset", reset, ResetPolicy)
    if lanes is not None:
        require_instance("lanes", lanes, LaneSettings)
    if handler is not None and not callable(handler):
        raise InvalidInput("handler must be callable with a run")
    store = await open_store(url, clock=SystemClock())
    try:
        lanes = lanes or LaneSettings()
        limits = lanes.limits(can_run_again=handler is not None)
        gateway = Gateway(store, clock=store.clock, ids=RandomIds(), settings=lanes, limits=limits)
        await gateway.start(handler)
        try:
            yield Holdfast(gateway, owner, reset)
        finally:
            await gateway.stop()
    finally:
        await store.close()


def new_meter(
    store: SqlStore, settings: Settings, tracer_provider: "TracerProvider | None" = None
) -> "PrometheusMeter":
    """Return a meter that counts the commits of a store, and exports traces if configured."""
    from holdfast.observability.metrics import PrometheusMeter
    from holdfast.observability.tracing import TracingMeter, tracing_meter
    from holdfast.stores.commit.group_commit import COMMANDS, SECONDS

    meter = PrometheusMeter()
    if tracer_provider is not None:
        meter = TracingMeter(tracer_provider, has_content=settings.otel.content)
    elif settings.otel.endpoint:
        meter = tracing_meter(settings.otel.endpoint, has_content=settings.otel.content)
    meter.known_models = _known_models(settings)
    commits = store.commits
    meter.add_histogram(
        "holdfast_commit_seconds", "Duration of commits.", SECONDS,
        lambda: (commits.by_seconds, commits.seconds),
    )  # fmt: skip
    meter.add_histogram(
        "holdfast_commit_commands", "Commands that share a commit.", COMMANDS,
        lambda: (commits.by_commands, commits.commands),
    )  # fmt: skip
    wal = wal_path(settings.store.url)
    if wal is not None:
        meter.add_gauge(
            "holdfast_wal_bytes", "Size of SQLite's write-ahead log.", lambda: file_size(wal)
        )
    return meter


def _known_models(settings: Settings) -> frozenset[str]:
    """Return the models that a configuration names, without patterns."""
    upstreams = (model for each in settings.upstreams for model in (*each.models, *each.fallback))
    channels = (table.model for table in settings.channels)
    schedules = (table.model for table in settings.schedules)
    return frozenset(model for model in (*upstreams, *channels, *schedules) if is_name(model))


def wal_path(store_url: str) -> Path | None:
    """Return the write-ahead log of a SQLite store."""
    if not store_url.startswith("sqlite:"):
        return None
    path = sqlite_path(store_url)
    return path.with_name(path.name + "-wal")


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def open_configured_store(settings: Settings) -> SqlStore:
    """Open and migrate the configured store."""
    store = await open_store(settings.store.url, clock=SystemClock())
    store.limit_cache(settings.store.cache_bytes)
    return store


async def read_configured_store(settings: Settings) -> SqlStore:
    """Open the configured store, whose schema is current, to read only."""
    return await open_store_to_read(settings.store.url, clock=SystemClock())


@asynccontextmanager
async def open_application(
    settings: Settings, *, tracer_provider: "TracerProvider | None" = None
) -> "AsyncIterator[Application]":
    """Open a gateway with its HTTP application until the block ends.

    `tracer_provider` receives the traces instead of the configured endpoint.
    """
    from holdfast.channel_services import ChannelServices
    from holdfast.http.app import Application
    from holdfast.observability.tracing import trace_calls, trace_commits
    from holdfast.providers.routing import UpstreamRouter

    ids, store = RandomIds(), await _open_to_serve(settings)
    upstreams = UpstreamRouter(settings.upstreams, ids.new)
    toolbox: GatewayTools | None = None
    try:
        await upstreams.start()
        meter = new_meter(store, settings, tracer_provider)
        runtimes: SessionRuntimes = upstreams
        services = ChannelServices(settings, _transcriber(settings, upstreams))
        upstreams = trace_calls(upstreams, meter)
        traced = trace_commits(store, meter)
        gateway = _new_gateway(traced, settings, store.clock, ids, meter, runtimes)
        has_windows = any(upstream.context_tokens is not None for upstream in settings.upstreams)
        windows = upstreams.context_tokens if has_windows else None
        compactor = Compactor(gateway, upstreams.provider, windows, settings.context)
        toolbox = _open_tools(gateway, settings, upstreams.context_tokens)
        executor = _new_executor(gateway, settings, upstreams, compactor, toolbox, services)
        turns = TurnService(gateway, executor)
        await toolbox.start()
        await gateway.start(turns.run_recovered)
        background = _start_background(gateway, settings, runtimes)
        try:
            async with services.run(gateway, turns) as directories:
                application = Application(
                    gateway,
                    turns,
                    upstreams,
                    _http_config(settings),
                    streams=settings.sessions,
                    compactor=compactor,
                    services=_http_services(store, settings, toolbox, directories, upstreams),
                )
                # Before anybody can connect: a request must never find the keys unread.
                await application.load_keys()
                toolbox.preload()
                yield application
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await turns.stop(settings.server.grace_seconds)
            await gateway.stop()
            # Exporting waits for the network: not on the event loop.
            await asyncio.to_thread(meter.shutdown)
    finally:
        if toolbox is not None:
            await toolbox.close()
        await upstreams.close()
        await store.close()


async def _open_to_serve(settings: Settings) -> SqlStore:
    """Open the configured store; log what endangers acknowledged turns, as the doctor finds it."""
    store = await open_configured_store(settings)
    try:
        risk = await store.risk()
    except BaseException:
        await store.close()
        raise
    if risk is not None:
        log.warning("store.replication_at_risk", finding=risk.code, detail=risk.detail)
    return store


def _transcriber(settings: Settings, upstreams: "UpstreamRouter") -> "Transcriber | None":
    """Return what transcribes voice messages, if it is configured."""
    transcribe = settings.transcribe
    if not transcribe.upstream:
        return None
    return upstreams.transcriber(transcribe.upstream, transcribe.model, transcribe.seconds)


def _new_gateway(
    store: Store,
    settings: Settings,
    clock: Clock,
    ids: Ids,
    meter: Meter,
    runtimes: SessionRuntimes,
) -> Gateway:
    """Return the gateway of a server, which also runs turns without a waiting client."""
    limits = settings.lanes.limits(
        can_run_again=True, max_tenant_turns=settings.limits.waiting_turns
    )
    return Gateway(
        store,
        clock=clock,
        ids=ids,
        settings=settings.lanes,
        limits=limits,
        storage=StorageQuota(store.read, settings.limits.stored_bytes),
        meter=meter,
        runtimes=runtimes,
    )


def _http_services(
    store: SqlStore,
    settings: Settings,
    toolbox: GatewayTools,
    directories: "tuple[ChannelDirectory, ScheduleDirectory]",
    upstreams: "UpstreamRouter",
) -> "Services":
    """Return the parts of the gateway that have endpoints of their own."""
    from holdfast.http.app import Services
    from holdfast.http.tools.catalogue import ToolServices

    channels, schedules = directories
    default_tools = _default_tools(settings, upstreams)
    return Services(
        admin=_admin_services(store, settings, toolbox, upstreams),
        tools=ToolServices(toolbox, settings.tools.approvers, toolbox.builtin, default_tools),
        channels=channels,
        schedules=schedules,
    )


def _admin_services(
    store: SqlStore, settings: Settings, toolbox: GatewayTools, upstreams: "UpstreamRouter"
) -> "AdminServices":
    """Return what the admin endpoints read from the store."""
    from holdfast.doctor.service import DoctorService
    from holdfast.http.admin.operations import AdminServices
    from holdfast.stores.reports import SqlReports

    doctor = DoctorService(
        store,
        settings.store.url,
        turn_seconds=settings.heals.turn_seconds,
        services=lambda: _service_findings(settings, toolbox, store, upstreams),
    )
    console = _load_console if settings.server.console else None
    return AdminServices(SqlReports(store), doctor.diagnose, console)


def _load_console() -> "Mapping[str, StaticFile]":
    from holdfast.console.files import load_files

    return load_files()


async def _service_findings(
    settings: Settings, toolbox: GatewayTools, store: SqlStore, upstreams: "UpstreamRouter"
) -> "list[Finding]":
    """Return the MCP servers that have failed, what upstreams speak, and what agents lack."""
    from holdfast.doctor.configuration import api_findings, check_agent_access, check_agents
    from holdfast.doctor.findings import Finding

    failed = [
        Finding(code="mcp_unavailable", subject=each.name, detail=each.error or "it has ended")
        for each in toolbox.server_status()
        if each.state == "failed"
    ]
    failed += await check_agents(settings.upstreams)
    failed += api_findings(upstreams)
    if not settings.keys:
        failed += await check_agent_access(settings.upstreams, store.read)
    return failed


def _new_executor(
    gateway: Gateway,
    settings: Settings,
    upstreams: "UpstreamRouter",
    compactor: Compactor,
    toolbox: GatewayTools,
    services: "ChannelServices",
) -> TurnExecutor:
    """Return what executes turns with the configured upstreams and tools."""
    return TurnExecutor(
        gateway,
        upstreams.provider,
        settings.heals,
        fallbacks=upstreams.fallbacks,
        compactor=compactor,
        toolbox=toolbox,
        tools=settings.tools,
        channels=services.formats,
    )


def _default_tools(
    settings: Settings, upstreams: "UpstreamRouter"
) -> Callable[[Tenant, str], Sequence[str]] | None:
    """Return the tools that upstreams add to the requests of a tenant; None if there are none.

    A server that only other tenants have is not added, so that nobody hears of it.
    """
    if not any(upstream.tools for upstream in settings.upstreams):
        return None
    servers = {f"mcp:{each.name}" for each in settings.mcp}
    owned = {(each.tenant, f"mcp:{each.name}") for each in settings.mcp}

    def tools(tenant: Tenant, model: str) -> Sequence[str]:
        names = upstreams.tools(model)
        return [name for name in names if name not in servers or (tenant, name) in owned]

    return tools


def _open_tools(
    gateway: Gateway, settings: Settings, windows: Callable[[str], int | None]
) -> GatewayTools:
    """Return the tools that the gateway runs; memory is searched where there is an index."""
    scope = settings.tools.scope
    memory = SessionMemory(gateway, scope) if settings.search.enabled else None
    builtin = BuiltinTools(gateway, scope=scope, windows=windows, search=memory)
    if not settings.mcp:
        return GatewayTools(builtin)
    from holdfast.tools.mcp.servers import McpServers

    return GatewayTools(builtin, McpServers(settings.mcp))


def _http_config(settings: Settings) -> "HttpConfig":
    """Return the settings of the HTTP API."""
    from holdfast.http.request.auth import ConfiguredKey, HttpConfig

    return HttpConfig(
        keys=tuple(
            ConfiguredKey(hash_key(key.key), Tenant(key.tenant), key.admin) for key in settings.keys
        ),
        allowed_hosts=settings.server.allowed_hosts,
        cors_origins=settings.server.cors_origins,
        body_bytes=settings.limits.body_bytes,
        body_bytes_in_flight=settings.limits.body_bytes_in_flight,
        items=settings.limits.items,
        requests_per_minute=settings.limits.requests_per_minute,
        reset=settings.reset_policy,
        has_search=settings.search.enabled,
    )


def connection_limits(settings: Settings) -> "ConnectionLimits":
    """Return the bounds of client connections."""
    from holdfast.http.server.protocol import ConnectionLimits

    return ConnectionLimits(
        head_bytes=settings.limits.header_bytes,
        connections_per_address=settings.limits.connections_per_address,
    )


def _start_background(
    gateway: Gateway, settings: Settings, runtimes: SessionRuntimes
) -> list[asyncio.Task[None]]:
    """Start what runs beside the turns: counting usage, and what is on of the rest."""
    counter = UsageCounter(gateway)
    tasks = [asyncio.create_task(counter.run(), name="holdfast-usage")]
    if settings.search.enabled:
        indexer = SearchIndexer(gateway)
        tasks.append(asyncio.create_task(indexer.run(), name="holdfast-search"))
    if settings.retention.is_on:
        tasks.append(_start_retention(gateway, settings.retention))
    if not runtimes.is_empty:
        tasks.append(_start_cleanup(gateway, runtimes))
    return tasks


def _start_cleanup(gateway: Gateway, runtimes: SessionRuntimes) -> asyncio.Task[None]:
    from holdfast.engine.maintenance.runtime_cleanup import RuntimeCleanup

    cleanup = RuntimeCleanup(gateway, runtimes)
    return asyncio.create_task(cleanup.run(), name="holdfast-agent-cleanup")


def _start_retention(gateway: Gateway, settings: RetentionSettings) -> asyncio.Task[None]:
    from holdfast.engine.maintenance.retention import Retention
    from holdfast.http.api.archive import SessionArchive

    archive = SessionArchive(gateway, Path(settings.archive))
    retention = Retention(gateway, settings, archive.archive)
    return asyncio.create_task(retention.run(), name="holdfast-retention")
