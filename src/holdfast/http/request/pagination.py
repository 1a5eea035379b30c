"""Pages of a list as in OpenAI's API: an exclusive id as the cursor, ascending or descending."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.server.types import Request
from holdfast.ports.store import Order

MAX_PAGE = 100


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
    """Return a page; an entry beyond `limit` means that more follow."""
    shown = ids[:limit]
    return {
        "object": "list",
        "data": list(entries[:limit]),
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": len(entries) > limit,
    }


def read_flag(query: dict[str, str], name: str) -> bool:
    """Return a boolean query parameter."""
    raw = query.get(name, "false").lower()
    if raw not in ("true", "false", "1", "0"):
        raise InvalidInput(f"{name} must be true or false, not {raw!r}", param=name)
    return raw in ("true", "1")
