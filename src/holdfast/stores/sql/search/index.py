"""The search index: how it follows the log, and how it is searched.

The index only proposes items. Whether one may be seen, and its text, is read from the log by each
query: an item that was erased is never found, also not by an index that is behind.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import SessionId, Tenant, WorkerId
from holdfast.core.model.records import HIDING, Record, in_force
from holdfast.core.model.session import Session
from holdfast.core.search.analysis import terms
from holdfast.core.search.item_text import item_text
from holdfast.core.search.query import Phrase, parse_query, snippet
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import IndexedItem, IndexLog, RemovedItems
from holdfast.ports.search import MAX_HITS, SearchHit, SearchPage, SearchQuery
from holdfast.stores.sql.entries import read_body, read_items, read_session, session_no
from holdfast.stores.sql.lookups import own_records, session_row
from holdfast.stores.sql.plan import Ask, Plan, QueryRunner, Row, every, one
from holdfast.stores.sql.search import statements as sql

ResultT = TypeVar("ResultT")

COMMON = 2_000
"""A term with more matches says little: where no item has all terms, it is not searched for."""
CANDIDATES = 400
"""Matches of one term that are compared where no item has all terms."""
SCOPE = "\ue000"
"""Begins terms that are no words: text has none with this character."""
LONG = SCOPE + "long"
"""Marks items whose phrases PostgreSQL cannot find: it counts only so many places of terms."""
MAX_PLACES, MAX_REPETITIONS = 16_000, 250
FIRST_PLACE, LAST_PLACE = 0, 2**62
FOREVER = 1e18
EVERYTHING = 2**31 - 1
FOUND_ON_REQUEST = frozenset({"rewind"})
"""Items that only such records hide are found with `include_hidden`."""
_ERASED = b"is_erased"


class SqlSearchIndex:
    """Search in a SQL store."""

    def __init__(self, run: QueryRunner) -> None:
        self._run = run

    async def search(self, tenant: Tenant, query: SearchQuery) -> SearchPage:
        """Return items that match and may be seen."""
        phrases = parse_query(query.text)
        return await self._run(lambda _: _Search(tenant, query, phrases).page())

    async def read_backlog(self, worker: WorkerId, limit: int) -> IndexLog | None:
        """Return the command that indexes the next entries."""
        rows, after = await self._run(lambda _: _backlog(limit))
        if not rows:
            return None
        # Splitting text into terms takes as long as writing them: not on the event loop.
        command = await asyncio.to_thread(_prepare, rows, after, worker)
        return replace(command, has_more=len(rows) == limit)

    async def backlog(self) -> int:
        """Return how many positions of the log are not indexed yet."""
        return await self._run(lambda _: _lag())


# ── following the log ───────────────────────────────────────────────────────────────────────


def _backlog(limit: int) -> Plan[tuple[list[Row], tuple[int, int]]]:
    row = yield from one(sql.CURSOR)
    after = (row[0], row[1]) if row else (0, 0)
    return (yield from every(sql.BACKLOG, *after, limit)), after


def _lag() -> Plan[int]:
    row = yield from one(sql.CURSOR)
    newest = yield from one(sql.NEWEST)
    return max((newest[0] if newest else 0) - (row[1] if row else 0), 0)


def _prepare(rows: Sequence[Row], after: tuple[int, int], worker: WorkerId) -> IndexLog:
    items: list[IndexedItem] = []
    removed: list[RemovedItems] = []
    for row in rows:
        _, _, session, n, last, at, packed, body, tenant, key, deleted_at = row
        if deleted_at is not None:
            # Erasing deletes what is indexed; this is for what was being indexed meanwhile.
            removed.append(RemovedItems(session, FIRST_PLACE, LAST_PLACE))
            continue
        if packed is not None:
            items += _indexed_items(session, n, last, at, bytes(packed), scope_terms(tenant, key))
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
            words = (*scope, *terms(found.text))
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


def scope_terms(tenant: str, key: str | None) -> tuple[str, ...]:
    """Return the terms that say whose an item is, so that a query looks at no others."""
    if key is None:
        return (_scope_term(tenant),)
    return _scope_term(tenant), _scope_term(f"{tenant}\0{key}")


def _scope_term(name: str) -> str:
    return SCOPE + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def index_log(command: IndexLog) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that index entries, unless somebody else has."""
    known = yield from one(sql.CURSOR)
    row = (yield from one(sql.LOCKED_CURSOR)) if known else (0, 0)
    position = (row[0], row[1]) if row else None
    if position != command.after:
        return Decision(position == command.upto), []
    asks: list[Ask] = [
        (sql.REMOVE_ITEMS, (one.session, one.from_seq, one.to_seq)) for one in command.removed
    ]
    asks += [
        (sql.ADD_ITEM, (item.session, item.n, item.seq, item.role, item.at, " ".join(item.terms)))
        for item in command.items
    ]
    asks.append((sql.SAVE_ACTIVITY, (*command.after, *command.upto)))
    asks.append((sql.SAVE_CURSOR, command.upto))
    return Decision(True), asks


# ── searching ───────────────────────────────────────────────────────────────────────────────


class _Match(msgspec.Struct, frozen=True):
    """An item that the index proposes."""

    place: int
    session: int
    n: int
    seq: int
    role: str
    at: float
    session_id: SessionId | None
    """None for an item that a filter leaves out."""


class _Visibility(msgspec.Struct, frozen=True):
    """A session, and the records that hide items of it."""

    session: Session
    records: list[Record]

    def hidden_by(self, seq: int) -> set[str]:
        """Return the kinds of records that hide an item."""
        return {record.kind for record in self.records if record.from_seq <= seq <= record.to_seq}


class _Search:
    """One query, and what it has learned about sessions so far."""

    def __init__(self, tenant: Tenant, query: SearchQuery, phrases: tuple[Phrase, ...]) -> None:
        self._tenant = tenant
        self._query = query
        self._phrases = phrases
        self._limit = min(max(query.limit, 1), MAX_HITS)
        self._sessions: dict[int, _Visibility | None] = {}

    def page(self) -> Plan[SearchPage]:
        """Return items with all terms, the newest first; if there are none, those with some."""
        query, limit = self._query, self._limit
        hits: list[SearchHit] = []
        before = query.after if query.after is not None else LAST_PLACE
        while True:
            matches = yield from self._matches(self._phrases, before, limit + 1)
            for match in matches:
                hits += yield from self._hit(match, self._phrases)
            if len(hits) > limit or len(matches) <= limit:
                break
            before = matches[-1].place
        if hits or query.after is not None or len(self._phrases) == 1:
            return SearchPage(tuple(hits[:limit]), has_more=len(hits) > limit)
        some = yield from self._some()
        return SearchPage(tuple(some), matches_all=not some)

    def _some(self) -> Plan[list[SearchHit]]:
        """Return items that have some of the terms: the rarer and the more, the better."""
        weights: dict[int, float] = {}
        found: dict[int, _Match] = {}
        for phrase in self._phrases:
            row = yield from one(sql.COUNT_MATCHES, *self._expressions((phrase,)), COMMON + 1)
            count = row[0] if row else 0
            if not 0 < count <= COMMON:
                continue
            for match in (yield from self._matches((phrase,), LAST_PLACE, CANDIDATES)):
                found[match.place] = match
                weight = math.log(1 + COMMON / count)
                weights[match.place] = weights.get(match.place, 0.0) + weight
        hits: list[SearchHit] = []
        for place in sorted(found, key=lambda place: (-weights[place], -place)):
            hits += yield from self._hit(found[place], ())
            if len(hits) == self._limit:
                break
        return hits

    def _matches(self, phrases: Iterable[Phrase], before: int, limit: int) -> Plan[list[_Match]]:
        query = self._query
        fts5, tsquery = self._expressions(phrases)
        rows = yield from every(
            sql.MATCHES,
            fts5,
            self._tenant,
            before,
            query.key or "",
            query.key_prefix or "",
            session_no(query.session_id) if query.session_id is not None else 0,
            f"|{'|'.join(query.roles)}|" if query.roles else "",
            query.since if query.since is not None else -FOREVER,
            query.until if query.until is not None else FOREVER,
            limit,
            tsquery,
            # Few sessions may have the prefix: the limit holds behind that filter.
            EVERYTHING if query.key_prefix else limit,
        )
        return [_Match(*row) for row in rows]

    def _expressions(self, phrases: Iterable[Phrase]) -> tuple[str, str]:
        """Return a query in the languages of FTS5 and of PostgreSQL.

        Terms are letters, digits and marks: nothing in them has to be escaped.
        """
        scope = scope_terms(self._tenant, self._query.key)[-1]
        fts5, tsquery = [f'"{scope}"'], [f"'{scope}'"]
        for phrase in phrases:
            star = "*" if phrase.is_prefix else ""
            fts5.append(f'"{" ".join(phrase.terms)}"{star}')
            quoted = [f"'{term}'" for term in phrase.terms]
            if phrase.is_prefix:
                quoted[-1] += ":*"
            words = f"({' <-> '.join(quoted)})"
            if len(quoted) > 1:
                # Of long items the index proposes those with all terms; the text decides.
                words = f"({words} | ('{LONG}' & {' & '.join(quoted)}))"
            tsquery.append(words)
        return " AND ".join(fts5), " & ".join(tsquery)

    def _hit(self, match: _Match, required: Sequence[Phrase]) -> Plan[list[SearchHit]]:
        """Return a match as the log has it now; nothing if it may not be seen.

        Its text must have all phrases that are `required`, and one of the query's at least.
        """
        visibility = yield from self._visibility(match)
        if visibility is None:
            return []
        hidden_by = visibility.hidden_by(match.seq)
        if hidden_by and not (self._query.include_hidden and hidden_by <= FOUND_ON_REQUEST):
            return []
        entry = yield from one(sql.ENTRY_ITEMS, match.session, match.n)
        if entry is None or entry[1] is None:
            return []
        listed = read_items(bytes(entry[1])).listed
        state = listed[match.seq - (entry[0] - len(listed) + 1)]
        found = item_text(state.body)
        shown = snippet(found.text, self._phrases, required) if found is not None else None
        if shown is None or not shown.highlights:
            return []
        session = visibility.session
        return [
            SearchHit(
                match.place, session.id, session.key, session.generation, match.seq,
                state.item_id, match.role, match.at, shown.text, shown.highlights, bool(hidden_by),
            )
        ]  # fmt: skip

    def _visibility(self, match: _Match) -> Plan[_Visibility | None]:
        if match.session_id is None:
            return None
        if match.session not in self._sessions:
            row = yield from session_row(match.session_id)
            session = read_session(row) if row is not None else None
            found = None
            if session is not None:
                records = yield from own_records(session.id, session.record_no)
                hiding = [record for record in in_force(records) if record.kind in HIDING]
                found = _Visibility(session, hiding)
            self._sessions[match.session] = found
        return self._sessions[match.session]
