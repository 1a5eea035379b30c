"""Paginate lists with exclusive cursors, in either order."""

from holdfast.simulator.delivery.errors import invalid, not_found
from holdfast.simulator.state.json import Json


def page(items: list[Json], query: dict[str, str], *, default_order: str = "desc") -> Json:
    """Return the page of `items` (oldest first) that `query` asks for."""
    limit = _limit(query.get("limit"))
    order = query.get("order", default_order)
    if order not in ("asc", "desc"):
        raise invalid(
            f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'.",
            "order",
            "invalid_value",
        )
    ordered = items if order == "asc" else items[::-1]
    after = query.get("after")
    start = 0
    if after is not None:
        start = 1 + next((i for i, item in enumerate(ordered) if item.get("id") == after), -1)
        if start == 0:
            raise not_found(f"Item with id '{after}' not found.")
    data = ordered[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(ordered),
    }


def _limit(given: str | None) -> int:
    if given is None:
        return 20
    if not given.isdigit() or not 1 <= int(given) <= 100:
        raise invalid(
            f"Invalid 'limit': expected an integer between 1 and 100, but got '{given}' instead.",
            "limit",
            "invalid_value",
        )
    return int(given)
