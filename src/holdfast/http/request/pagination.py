"""Pages of a list, as OpenAI's are: a cursor that is an id, exclusive, in the order asked for."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.server.types import Request
from holdfast.ports.store import Order

MAX_PAGE = 100


class UnknownCursor(InvalidInput):
    """`after` names nothing in this list."""

    code = "unknown_cursor"


class PageAsked(msgspec.Struct, frozen=True):
    """What a request says about the page it wants."""

    limit: int
    order: Order
    after: str | None


def read_page(request: Request, *, order: Order = "desc") -> PageAsked:
    """Return which page is asked for; `order` is what the list has when nothing is said."""
    asked = request.query()
    chosen = read_choice(asked, "order", ("asc", "desc")) or order
    return PageAsked(
        read_limit(asked), "asc" if chosen == "asc" else "desc", asked.get("after") or None
    )


def read_choice(asked: dict[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    """Return which of a few words the query says, if it says any."""
    chosen = asked.get(name)
    if chosen is not None and chosen not in choices:
        raise InvalidInput(f"{name} is one of {', '.join(choices)}, not {chosen!r}")
    return chosen


def read_limit(asked: dict[str, str], default: int = 20) -> int:
    """Return a page's size."""
    raw = asked.get("limit")
    if raw is None:
        return default
    is_number = raw.isascii() and raw.isdecimal() and len(raw) < 10
    if not is_number or not 1 <= int(raw) <= MAX_PAGE:
        raise InvalidInput(f"limit is a number from 1 to {MAX_PAGE}")
    return int(raw)


def page(
    found: Sequence[dict[str, Any] | msgspec.Raw], names: Sequence[str], limit: int
) -> dict[str, Any]:
    """Return a page; one entry more than asked says that more follow."""
    shown = names[:limit]
    return {
        "object": "list",
        "data": list(found[:limit]),
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": len(found) > limit,
    }
