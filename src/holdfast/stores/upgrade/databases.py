"""The source and the target of an upgrade."""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.errors import StoreError
from holdfast.stores.sql.plan import Ask

Row = Sequence[Any]


class Source(Protocol):
    """The old store, read in one snapshot."""

    name: str
    """The store as messages may show it, without secrets."""

    async def now(self) -> float:
        """Return the time by which the store's leases are judged."""
        ...

    async def tables(self) -> set[str]:
        """Return the names of the tables."""
        ...

    async def rows(self, text: str, *parameters: Any) -> list[Row]:
        """Return all rows of a query; its parameters are written `?1`, `?2`."""
        ...

    async def close(self) -> None:
        """Release the database."""
        ...


class NewStore(Protocol):
    """The new store. Nothing of it can be opened as a store before `finish`."""

    name: str

    async def begin(self) -> None:
        """Create the schema; refuse a place that is not empty."""
        ...

    async def write(self, asks: Sequence[Ask]) -> None:
        """Write statements in their order."""
        ...

    async def finish(self) -> None:
        """Make everything durable and available at once."""
        ...

    async def abandon(self) -> None:
        """Remove what was written."""
        ...


def refuse_target(name: str) -> StoreError:
    """Return the error for a target that is not empty."""
    return StoreError(f"{name} is not empty; name a new store to copy into")
