"""Items by name: pages whose every entry can be found again, and the way back from a name."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.model.item_ids import OTHER_PREFIX, name_at, owner_of, split_name
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import HIDING, Record, Span
from holdfast.core.model.session import Session
from holdfast.ports.store import ItemQuery, ListedItem
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.facts import find_hidden, find_items, find_lineage
from holdfast.stores.sql.plan import Plan, every
from holdfast.stores.sql.queries import items

Stretch = tuple[Session, int, int]
"""An owner of items in a line of forks, and the first and last of them."""


def listing(of: Session, query: ItemQuery) -> Plan[list[ListedItem]]:
    """Return a page of items with their names and, in the log's view, what hides each."""
    page = yield from items(of, query)
    if not page:
        return []
    line = yield from _stretches(of)
    shared = yield from _shared(line, min(i.seq for i in page), max(i.seq for i in page))
    hidden: Sequence[Span] = (yield from find_hidden(of)) if shared else ()
    records = (yield from _hiding(of)) if query.view == "log" else []
    listed: list[ListedItem] = []
    for item in page:
        name = item.item_id or name_at(OTHER_PREFIX, item.seq)
        if item.item_id is not None and item.seq in shared:
            places = yield from _places(line, item.item_id)
            if owner_of(places, hidden) != item.seq:
                name = name_at(item.item_id, item.seq)
        listed.append(ListedItem(item, name, _what_hides(item, records)))
    return listed


def find_listed(of: Session, name: str) -> Plan[ListedItem | None]:
    """Return the item that goes by a name, hidden or not."""
    line = yield from _stretches(of)
    places = yield from _places(line, name)
    hidden: Sequence[Span] = (yield from find_hidden(of)) if of.hidden_count else ()
    parts = split_name(name)
    if places:
        seq = owner_of(places, hidden)
    elif parts is not None:
        seq = parts[1]
    else:
        return None
    if seq is None or not 1 <= seq <= of.head_seq:
        return None
    found = yield from find_items(of, seq, seq)
    if not found or (not places and parts and (found[0].item_id or OTHER_PREFIX) != parts[0]):
        return None
    records = (yield from _hiding(of)) if of.hidden_count else []
    return ListedItem(found[0], name, _what_hides(found[0], records))


def _stretches(of: Session) -> Plan[list[Stretch]]:
    """Return who keeps which part of a session's log, the oldest part first."""
    line = yield from find_lineage(of)
    last = of.head_seq
    stretches: list[Stretch] = []
    for owner in line:
        stretches.append((owner, owner.parent_seq + 1, last))
        last = min(last, owner.parent_seq)
    stretches.reverse()
    return stretches


def _places(line: Sequence[Stretch], item_id: str) -> Plan[list[int]]:
    """Return where an id occurs, oldest first."""
    places: list[int] = []
    for owner, first, last in line:
        rows = yield from every(sql.PLACES_OF_ITEM, owner.id, item_id, first, last)
        places.extend(row[0] for row in rows)
    return places


def _shared(line: Sequence[Stretch], first: int, last: int) -> Plan[set[int]]:
    """Return those places of a range whose id occurs elsewhere in the log too."""
    shared: set[int] = set()
    for owner, own_first, own_last in line:
        start, end = max(first, own_first), min(last, own_last)
        if start > end:
            continue
        for other, other_first, other_last in line:
            rows = yield from every(
                sql.SHARED_ITEM_IDS, owner.id, start, end, other.id, other_first, other_last
            )
            shared.update(row[0] for row in rows)
    return shared


def _hiding(of: Session) -> Plan[list[Record]]:
    """Return the records that hide something of a session's log, its ancestors' included."""
    found: list[Record] = []
    line = yield from find_lineage(of)
    upto, records = of.head_seq, of.record_no
    for owner in line:
        rows = yield from every(sql.RECORDS, owner.id, records)
        own = [Record(*row) for row in rows]
        undone = {record.undoes for record in own if record.kind == "undo"}
        # What an ancestor hides of its own later log is no business of its heirs.
        found.extend(
            replace(record, to_seq=min(record.to_seq, upto))
            for record in own
            if record.kind in HIDING and record.no not in undone and record.from_seq <= upto
        )
        upto, records = min(upto, owner.parent_seq), owner.parent_record
    return found


def _what_hides(item: StoredItem, records: Sequence[Record]) -> Record | None:
    for record in records:
        if record.from_seq <= item.seq <= record.to_seq:
            return record
    return None
