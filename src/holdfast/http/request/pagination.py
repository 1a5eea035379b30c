"""Pages of a list as in OpenAI's API: an exclusive id as the cursor, ascending or descending.

A page is bounded in entries and in bytes; it has at least one entry.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.server.types import Request
from holdfast.ports.store import Order

MAX_PAGE = 100
MAX_PAGE_BYTES = 1024 * 1024
"""Size of the entries of a page, unless its first one is larger."""
FIRST_ENTRIES, MORE_ENTRIES = 5, 4
"""How many entries are read at first, and how many times more next: they may be large."""
EntryT = TypeVar("EntryT")
_encode = msgspec.json.Encoder().encode


class UnknownCursor(InvalidInput):
    """`after` does not name an entry of this list."""

    code = "unknown_cursor"
    param = "after"


class PageRequest(msgspec.Struct, frozen=True):
    """The page that a request asks for."""

    limit: int
    order: Order
    after: str | None


def read_page(request: Request, *, order: Order = "desc") -> PageRequest:
    """Return the requested page; `order` is the default order."""
    query = request.query()
    chosen = read_choice(query, "order", ("asc", "desc")) or order
    return PageRequest(
        read_limit(query), "asc" if chosen == "asc" else "desc", query.get("after") or None
    )


def read_choice(query: dict[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    """Return a query parameter that must be one of `choices`; `None` if it is missing."""
    chosen = query.get(name)
    if chosen is not None and chosen not in choices:
        raise InvalidInput(
            f"{name} must be one of {', '.join(choices)}, not {chosen!r}", param=name
        )
    return chosen


def read_limit(query: dict[str, str], default: int = 20, max_limit: int = MAX_PAGE) -> int:
    """Return the page size."""
    raw = query.get("limit")
    if raw is None:
        return default
    is_number = raw.isascii() and raw.isdecimal() and len(raw) < 10
    if not is_number or not 1 <= int(raw) <= max_limit:
        raise InvalidInput(f"limit must be a number from 1 to {max_limit}", param="limit")
    return int(raw)


def page(
    entries: Sequence[dict[str, Any] | msgspec.Raw], ids: Sequence[str], limit: int
) -> dict[str, Any]:
    """Return a page; an entry beyond `limit`, or beyond what fits, means that more follow."""
    shown: list[msgspec.Raw] = []
    size = 0
    for entry in entries[:limit]:
        raw = entry if isinstance(entry, msgspec.Raw) else msgspec.Raw(_encode(entry))
        size += memoryview(raw).nbytes
        if shown and size > MAX_PAGE_BYTES:
            break
        shown.append(raw)
    return whole_page(shown, ids[: len(shown)], has_more=len(entries) > len(shown))


def whole_page(
    entries: Sequence[dict[str, Any] | msgspec.Raw], ids: Sequence[str], *, has_more: bool = False
) -> dict[str, Any]:
    """Return a page of all entries, whatever their size: of a list without a next page."""
    return {
        "object": "list",
        "data": entries,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


async def read_entries(
    limit: int,
    read: Callable[[int, EntryT | None], Awaitable[list[EntryT]]],
    size_of: Callable[[EntryT], int | None],
) -> list[EntryT]:
    """Read entries up to `limit`, or up to the first one beyond what fits into a page.

    `read` returns a number of entries after one; entries without a size are left out.
    """
    found: list[EntryT] = []
    last: EntryT | None = None
    size, wanted = 0, FIRST_ENTRIES
    while len(found) < limit:
        count = min(wanted, limit - len(found))
        entries = await read(count, last)
        for entry in entries:
            entry_size = size_of(entry)
            if entry_size is not None:
                found.append(entry)
                size += entry_size
                if size > MAX_PAGE_BYTES and len(found) > 1:
                    return found
        if len(entries) < count:
            break
        last, wanted = entries[-1], wanted * MORE_ENTRIES
    return found


def read_flag(query: dict[str, str], name: str) -> bool:
    """Return a boolean query parameter."""
    raw = query.get(name, "false").lower()
    if raw not in ("true", "false", "1", "0"):
        raise InvalidInput(f"{name} must be true or false, not {raw!r}", param=name)
    return raw in ("true", "1")
