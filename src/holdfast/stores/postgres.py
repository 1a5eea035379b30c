"""PostgreSQL 14 and later: a pool, grouped commits, wake-ups pushed by the database."""

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.store import SqlStore


async def open_postgres(url: str) -> SqlStore:
    """Return the store of a PostgreSQL database."""
    raise StoreUnavailable(f"no driver for {url.split(':', 1)[0]} yet")
