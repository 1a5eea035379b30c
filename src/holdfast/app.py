"""How it is put together: a URL becomes a store, a store becomes a running engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.core.ids import DEFAULT_TENANT, Tenant
from holdfast.core.reset import NEVER, ResetPolicy
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.desk import Desk
from holdfast.engine.embedded import Holdfast
from holdfast.engine.gateway import Gateway, Handler
from holdfast.engine.responder import Responder
from holdfast.engine.settings import LaneSettings
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ingress.http.application import Application
from holdfast.settings import Settings
from holdfast.stores.opening import open_store


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
    clock = SystemClock()
    store = await open_store(url, clock=clock)
    try:
        gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=lanes, handler=handler)
        await gateway.start()
        try:
            yield Holdfast(gateway, Tenant(tenant), reset)
        finally:
            await gateway.stop()
    finally:
        await store.close()


@asynccontextmanager
async def open_application(settings: Settings) -> AsyncIterator[Application]:
    """Open a gateway as an ASGI application, until the block ends."""
    from holdfast.providers.routing import Upstreams

    clock, ids = SystemClock(), RandomIds()
    store = await open_store(settings.store_url, clock=clock)
    upstreams = Upstreams(settings.upstreams, ids.new)
    try:
        desk: Desk | None = None

        async def carry_adopted(run: ActiveRun) -> None:
            assert desk is not None
            await desk.carry_adopted(run)

        gateway = Gateway(
            store, clock=clock, ids=ids, settings=settings.lanes, handler=carry_adopted
        )
        desk = Desk(gateway, Responder(gateway, upstreams.provider, settings.heals))
        await gateway.start()
        try:
            yield Application(gateway, desk, upstreams.models, streams=settings.streams)
        finally:
            await desk.stop(settings.server.grace_seconds)
            await gateway.stop()
    finally:
        await upstreams.close()
        await store.close()
