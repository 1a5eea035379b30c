"""How it is put together: a URL becomes a store, a store becomes a running engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, Tenant, read_tenant
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.context.compactor import Compactor
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.embedded.validation import an_instance
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway, Handler
from holdfast.engine.sessions.quota import StorageGauge
from holdfast.engine.settings import LaneSettings, RetentionSettings
from holdfast.engine.turns.executor import Responder
from holdfast.engine.turns.turn_service import Desk
from holdfast.settings import Settings
from holdfast.stores.open import open_store, sqlite_path
from holdfast.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from holdfast.http.app import Application
    from holdfast.http.metrics import PrometheusMeter
    from holdfast.http.request.auth import HouseRules


@asynccontextmanager
async def open(  # noqa: A001 - the contract's name, always used as holdfast.open
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    lanes: LaneSettings | None = None,
    reset: ResetPolicy = NEVER,
    handler: Handler | None = None,
) -> AsyncIterator[Holdfast]:
    """Open a store and take part in its work until the block ends.

    `handler` carries out background, cron and channel turns that a crash left behind; without
    one they are kept as interrupted, to be resumed by whoever sends them again.
    """
    owner = read_tenant(tenant)
    an_instance("reset", reset, ResetPolicy)
    if lanes is not None:
        an_instance("lanes", lanes, LaneSettings)
    if handler is not None and not callable(handler):
        raise InvalidInput("a handler is called with a run")
    clock = SystemClock()
    store = await open_store(url, clock=clock)
    try:
        gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=lanes, handler=handler)
        await gateway.start()
        try:
            yield Holdfast(gateway, owner, reset)
        finally:
            await gateway.stop()
    finally:
        await store.close()


def new_meter(store: SqlStore, settings: Settings) -> "PrometheusMeter":
    """Return a meter that counts the commits of a store, and exports traces if configured."""
    from holdfast.http.metrics import PrometheusMeter

    meter = PrometheusMeter()
    if settings.otel.endpoint:
        from holdfast.http.tracing import tracing_meter

        meter = tracing_meter(settings.otel.endpoint)
    store.on_commit(meter.committed)
    wal = wal_path(settings.store.url)
    if wal is not None:
        meter.add_gauge(
            "holdfast_wal_bytes", "Size of SQLite's write-ahead log.", lambda: file_size(wal)
        )
    return meter


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
    """Return the store that the settings name, open and migrated."""
    return await open_store(settings.store.url, clock=SystemClock())


@asynccontextmanager
async def open_application(settings: Settings) -> "AsyncIterator[Application]":
    """Open a gateway as an ASGI application, until the block ends."""
    from holdfast.http.app import Application
    from holdfast.providers.routing import Upstreams

    clock, ids = SystemClock(), RandomIds()
    store = await open_store(settings.store.url, clock=clock)
    upstreams = Upstreams(settings.upstreams, ids.new)
    try:
        desk: Desk | None = None

        async def carry_adopted(run: ActiveRun) -> None:
            assert desk is not None
            await desk.carry_adopted(run)

        meter = new_meter(store, settings)
        gateway = Gateway(
            store,
            clock=clock,
            ids=ids,
            settings=settings.lanes,
            handler=carry_adopted,
            meter=meter,
        )
        gateway.limits = settings.lanes.limits(
            can_run_again=True, max_tenant_turns=settings.limits.waiting_turns
        )
        gateway.storage = StorageGauge(store.read, settings.limits.stored_bytes)
        compactor = Compactor(
            gateway, upstreams.provider, upstreams.context_tokens, settings.context
        )
        responder = Responder(
            gateway,
            upstreams.provider,
            settings.heals,
            fallbacks=upstreams.fallbacks,
            fitting=compactor,
        )
        desk = Desk(gateway, responder)
        await gateway.start()
        sweeping = _sweep(gateway, settings.retention)
        try:
            yield Application(
                gateway,
                desk,
                upstreams,
                _rules(settings),
                streams=settings.sessions,
                compactor=compactor,
            )
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            await desk.stop(settings.server.grace_seconds)
            await gateway.stop()
            # Exporting waits for the network: not on the event loop.
            await asyncio.to_thread(meter.shutdown)
    finally:
        await upstreams.close()
        await store.close()


def _rules(settings: Settings) -> "HouseRules":
    """Return the settings as the HTTP side knows them."""
    from holdfast.http.request.auth import Door, HouseRules

    return HouseRules(
        doors=tuple(
            Door(hash_key(key.key), Tenant(key.tenant), key.admin) for key in settings.keys
        ),
        allowed_hosts=settings.server.allowed_hosts,
        cors_origins=settings.server.cors_origins,
        body_bytes=settings.limits.body_bytes,
        requests_per_minute=settings.limits.requests_per_minute,
        reset=settings.reset_policy,
    )


def _sweep(gateway: Gateway, settings: RetentionSettings) -> "asyncio.Future[None]":
    """Begin what retention asks for, if it asks for anything."""
    if not settings.is_on:
        return asyncio.get_running_loop().create_future()
    from holdfast.engine.maintenance.retention import Retention
    from holdfast.http.api.archive import SessionArchive

    archive = SessionArchive(gateway, Path(settings.archive))
    retention = Retention(gateway, settings, archive.keep)
    return asyncio.create_task(retention.run(), name="holdfast-retention")
