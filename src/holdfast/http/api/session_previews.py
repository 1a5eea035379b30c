"""The first and the last words of a session, for lists that people read."""

from typing import Any

from holdfast.core.model.session import Session
from holdfast.core.search.item_text import item_text
from holdfast.ports.store import HistoryReader, ItemQuery, Order

READ_ITEMS = 6
"""The items at each end among which words are searched: calls and reasoning have none."""
MAX_CHARACTERS = 160


async def preview(read: HistoryReader, session: Session) -> dict[str, Any]:
    """Return the first words of a user and the last words of anybody, null if there are none."""
    return {
        "first": await _words(read, session, "asc", ("user",)),
        "last": await _words(read, session, "desc", ("user", "assistant")),
    }


async def _words(
    read: HistoryReader, session: Session, order: Order, roles: tuple[str, ...]
) -> dict[str, str] | None:
    if not session.item_count:
        return None
    for item in await read.items(session, ItemQuery(limit=READ_ITEMS, order=order)):
        text = item_text(item.body)
        if text is not None and text.role in roles:
            return {"role": text.role, "text": " ".join(text.text[:MAX_CHARACTERS].split())}
    return None
