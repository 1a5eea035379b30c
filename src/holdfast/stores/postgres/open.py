"""Open and migrate the store of a PostgreSQL URL."""

import secrets
from collections.abc import Mapping

from holdfast.ports.clock import Clock
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.connect import ANSWER_SECONDS, Connector
from holdfast.stores.postgres.driver import PostgresDriver
from holdfast.stores.postgres.dsn import read_target
from holdfast.stores.postgres.listener import NotificationListener
from holdfast.stores.sql.store import SqlStore


async def open_postgres(
    url: str,
    *,
    clock: Clock | None = None,
    settings: Mapping[str, str] | None = None,
    answer_seconds: float = ANSWER_SECONDS,
    is_read_only: bool = False,
) -> SqlStore:
    """Return the store of a PostgreSQL database; to read only, its schema must be current.

    Time is the database's, unless a test passes a `clock`. `settings` are PostgreSQL's own
    (`statement_timeout`, `lock_timeout`, …) and override the defaults.
    """
    settings = settings or {}
    if is_read_only:
        settings = {**settings, "default_transaction_read_only": "on"}
    connector = Connector(target=read_target(url), settings=settings, answer_seconds=answer_seconds)
    server_clock = ServerClock(clock)
    origin = secrets.token_hex(8)
    listener = NotificationListener(connector, server_clock, origin=origin)
    driver = PostgresDriver(connector, server_clock, listener, origin=origin)
    store = SqlStore(driver, listener)
    try:
        await driver.open(is_read_only=is_read_only)
        announce = None if is_read_only else store.announce
        await listener.start(announce, store.announce_outbox)
        store.tell_outbox = listener.tell_outbox
    except BaseException:
        await driver.close()
        raise
    return store
