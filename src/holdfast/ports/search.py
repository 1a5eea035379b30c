"""The port to full-text search over everything that is stored."""

from typing import Protocol

import msgspec

from holdfast.core.ids import Key, SessionId, Tenant, WorkerId
from holdfast.core.transaction.commands import IndexLog

MAX_HITS = 100
"""The hits of one page."""


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to find (words, `"phrases"` and `prefixes*`), and where."""

    text: str
    key: Key | None = None
    """Restricts the search to sessions of this key, all generations."""
    key_prefix: str | None = None
    session_id: SessionId | None = None
    roles: tuple[str, ...] = ()
    """Any of user, assistant, system, developer, tool; empty means all."""
    since: float | None = None
    until: float | None = None
    include_hidden: bool = False
    """Whether items that were replaced by an edit or a regenerate are included."""
    limit: int = 20
    after: int | None = None
    """The place of the last hit seen."""


class SearchHit(msgspec.Struct, frozen=True):
    """An item that matches; `highlights` are ranges of the snippet."""

    place: int
    session_id: SessionId
    key: Key | None
    generation: int
    seq: int
    item_id: str | None
    role: str
    at: float
    snippet: str
    highlights: tuple[tuple[int, int], ...]
    is_hidden: bool


class SearchPage(msgspec.Struct, frozen=True):
    """Hits: newest first if they match the whole query, else best first."""

    hits: tuple[SearchHit, ...]
    has_more: bool = False
    matches_all: bool = True
    """False if no item has all words: then items with some of them are listed."""


class SearchIndex(Protocol):
    """An index that follows the log; it may lag behind the latest commits."""

    async def search(self, tenant: Tenant, query: SearchQuery) -> SearchPage:
        """Return matching items that the tenant may see.

        Items that were erased, rolled back or replaced by a retry are never found, and neither are
        those of other tenants. Raise `InvalidInput` for a query that has no words or is too long.
        """
        ...

    async def sessions(
        self, tenant: Tenant, text: str, limit: int, *, generations: bool = False
    ) -> list[SessionId]:
        """Return sessions whose key begins with a text, then those whose key has its words.

        Retired sessions are left out unless all `generations` are wanted. A key's words are found
        once the index has followed the log; its beginning is found at once.
        """
        ...

    async def hit_place(self, tenant: Tenant, session_id: SessionId, seq: int) -> int | None:
        """Return the place of an item; None if the tenant has no such item."""
        ...

    async def own_hit(self, tenant: Tenant, place: int) -> int | None:
        """Return a place if it is that of an item of this tenant, else None."""
        ...

    async def read_backlog(self, worker: WorkerId, limit: int) -> IndexLog | None:
        """Return the command that indexes the next entries, or None if all are indexed."""
        ...

    async def backlog(self) -> int:
        """Return how many positions of the log are not indexed yet."""
        ...
