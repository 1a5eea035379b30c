"""The source and the target of an upgrade."""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.errors import StoreError
from holdfast.stores.sql.plan import Ask

Row = Sequence[Any]


class Source(Protocol):
    """The old store, read in one snapshot."""

    name: str
    """The store's name for messages, without secrets."""

    async def now(self) -> float:
        """Return the time to compare the store's leases with."""
        ...

    async def tables(self) -> set[str]:
        """Return the names of the tables."""
        ...

    async def rows(self, text: str, *parameters: Any) -> list[Row]:
        """Return all rows of a query, whose parameters are written `?1`, `?2`."""
        ...

    async def close(self) -> None:
        """Release the database."""
        ...


class NewStore(Protocol):
    """The new store, which cannot be opened before `finish`."""

    name: str

    async def begin(self) -> None:
        """Create the schema; reject a target that is not empty."""
        ...

    async def write(self, asks: Sequence[Ask]) -> None:
        """Run statements in order."""
        ...

    async def finish(self) -> None:
        """Make everything durable and available at once."""
        ...

    async def abandon(self) -> None:
        """Remove everything that was written."""
        ...


def refuse_target(name: str) -> StoreError:
    """Return the error for a target that is not empty."""
    return StoreError(f"{name} is not empty; name a new store to copy into")
