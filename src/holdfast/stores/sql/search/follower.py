"""Follow the log: read what is not indexed yet, split it into terms, write the index."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.ids import WorkerId
from holdfast.core.search.analysis import terms
from holdfast.core.search.item_text import item_text
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import IndexedItem, IndexLog, RemovedItems
from holdfast.stores.sql.entries import read_body, read_items
from holdfast.stores.sql.plan import Ask, Plan, Row, every, one
from holdfast.stores.sql.search import statements as sql
from holdfast.stores.sql.search.terms import BLOCK_BITS, LONG, role_term, scope_terms

MAX_PLACES, MAX_REPETITIONS = 16_000, 250
"""Places of all terms of an item, and of one term, that PostgreSQL stores."""
FIRST_SEQ, LAST_SEQ = 0, 2**62
_ERASED = b"is_erased"


def read_rows(limit: int) -> Plan[tuple[list[Row], tuple[int, int]]]:
    """Return the next entries, and the position that they follow."""
    row = yield from one(sql.CURSOR)
    after = (row[0], row[1]) if row else (0, 0)
    return (yield from every(sql.BACKLOG, *after, limit)), after


def count_backlog() -> Plan[int]:
    """Return how many positions of the log are not indexed yet."""
    row = yield from one(sql.CURSOR)
    newest = yield from one(sql.NEWEST)
    return max((newest[0] if newest else 0) - (row[1] if row else 0), 0)


def prepare(rows: Sequence[Row], after: tuple[int, int], worker: WorkerId) -> IndexLog:
    """Return the command that indexes entries."""
    items: list[IndexedItem] = []
    removed: list[RemovedItems] = []
    for row in rows:
        _, _, session, n, last, at, packed, body, tenant, key, deleted_at = row
        if deleted_at is not None:
            # Erasing deletes what is indexed; this is for what was being indexed meanwhile.
            removed.append(RemovedItems(session, FIRST_SEQ, LAST_SEQ))
            continue
        if packed is not None:
            scope = scope_terms(tenant, key, session)
            items += _indexed_items(session, n, last, at, bytes(packed), scope)
        if _ERASED in body:
            removed += _erased_ranges(session, bytes(body))
    upto = (rows[-1][0], rows[-1][1])
    return IndexLog(
        worker=worker, after=after, upto=upto, items=tuple(items), removed=tuple(removed)
    )


def _indexed_items(
    session: int, n: int, last: int, at: float, packed: bytes, scope: tuple[str, ...]
) -> Iterable[IndexedItem]:
    listed = read_items(packed).listed
    first = last - len(listed) + 1
    for seq, state in enumerate(listed, first):
        found = item_text(state.body)
        if found is not None:
            words = (*scope, role_term(found.role), *terms(found.text))
            if _is_long(words):
                words = (*words, LONG)
            yield IndexedItem(session, n, seq, found.role, at, words)


def _is_long(words: Sequence[str]) -> bool:
    """Whether an item has more places than PostgreSQL stores, of all terms or of one."""
    if len(words) <= MAX_REPETITIONS:
        return False
    return len(words) > MAX_PLACES or max(Counter(words).values()) > MAX_REPETITIONS


def _erased_ranges(session: int, body: bytes) -> Iterable[RemovedItems]:
    for kind, _, event in read_body(body).events:
        if kind == "items.hidden" and event is not None:
            record = msgspec.json.decode(event)
            if record.get("is_erased"):
                yield RemovedItems(session, record["from_seq"], record["to_seq"])


def index_log(command: IndexLog) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that index entries, unless somebody else has."""
    known = yield from one(sql.CURSOR)
    row = (yield from one(sql.LOCKED_CURSOR)) if known else (0, 0, 0)
    position = (row[0], row[1]) if row else None
    if row is None or position != command.after:
        return Decision(position == command.upto), []
    asks: list[Ask] = [
        (sql.REMOVE_ITEMS, (one.session, one.from_seq, one.to_seq)) for one in command.removed
    ]
    # Numbered here and not by the database: blocks have no gaps, and no number is used twice.
    last_id = row[2] + len(command.items)
    numbered = list(enumerate(command.items, row[2] + 1))
    asks += [
        (
            sql.ADD_ITEM,
            (number, item.session, item.n, item.seq, item.role, item.at, " ".join(item.terms)),
        )
        for number, item in numbered
    ]
    asks += _block_times(numbered)
    asks.append((sql.SAVE_ACTIVITY, (*command.after, *command.upto)))
    asks.append((sql.SAVE_CURSOR, (*command.upto, last_id)))
    return Decision(True), asks


def _block_times(numbered: Iterable[tuple[int, IndexedItem]]) -> list[Ask]:
    """Return the statements that widen the times of blocks by those of their new items."""
    times: dict[int, list[float]] = {}
    for number, item in numbered:
        times.setdefault(number >> BLOCK_BITS, []).append(item.at)
    return [(sql.SAVE_BLOCK, (block, min(at), max(at))) for block, at in times.items()]
