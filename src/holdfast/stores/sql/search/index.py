"""Search in the full-text index.

The index only proposes items. Each query reads from the log whether an item may be seen, and its
text, so an erased item is never found, even if the index lags behind.

Matches are read from the newest item to the oldest. PostgreSQL would read all matches to sort them:
there a few blocks of items are read first, so that a common word costs no more than a rare one.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.core.ids import Key, SessionId, Tenant, WorkerId
from holdfast.core.model.records import HIDING, Record, in_force
from holdfast.core.search.item_text import item_text
from holdfast.core.search.query import Phrase, parse_query, snippet, split_query
from holdfast.core.transaction.commands import IndexLog
from holdfast.ports.search import MAX_HITS, SearchHit, SearchPage, SearchQuery
from holdfast.stores.sql.entries import read_items, read_records, read_session, session_no
from holdfast.stores.sql.lookups import find_number, find_session, session_row
from holdfast.stores.sql.plan import Plan, QueryRunner, every, one
from holdfast.stores.sql.search import follower
from holdfast.stores.sql.search import statements as sql
from holdfast.stores.sql.search.terms import (
    BLOCK_BITS,
    MARK,
    block_terms,
    filters_tsquery,
    fts5_query,
    key_phrase,
    key_prefixes,
    owner_term,
    phrases_tsquery,
    prefix_term,
    role_term,
    tenant_term,
)
from holdfast.stores.sql.statements import COUNTS, ENTRY_PLACE

COUNTED_BLOCKS = 4
"""How many of the newest blocks are used to count the matches of a term."""
COMMON = 500
"""A term with more matches there is not selective: items with a rarer one are listed instead."""
CANDIDATES = 100
"""Matches of each term that are compared if no item has all terms."""
MAX_KEYS = 16
"""Keys with a prefix that are searched one by one; if there are more, by a part of the prefix."""
MAX_BATCH = 500
"""The most matches that are read at once."""
BLOCKS_PER_STAGE = (2, 8, 32)
"""How many blocks each stage searches if matches are sorted; the last stage has all others."""
LAST_CHARACTER = "\U0010ffff"
NOTHING = MARK
"""A term that no item has."""
FOREVER = 1e18
FOUND_ON_REQUEST = frozenset({"rewind"})
"""Items hidden only by records of these kinds are found with `include_hidden`."""


class SqlSearchIndex:
    """Search in a SQL store."""

    def __init__(self, run: QueryRunner, run_inline: QueryRunner, *, is_staged: bool) -> None:
        self._run = run
        self._run_inline = run_inline
        self._is_long = False
        """Whether the entries that were read last have long items."""
        self._stages = BLOCKS_PER_STAGE if is_staged else ()

    async def search(self, tenant: Tenant, query: SearchQuery) -> SearchPage:
        """Return items that match and may be seen."""
        phrases = parse_query(query.text)
        return await self._run(lambda _: _Search(tenant, query, phrases, self._stages).page())

    async def sessions(
        self, tenant: Tenant, text: str, limit: int, *, generations: bool = False
    ) -> list[SessionId]:
        """Return sessions whose key begins with a text, then those whose key has its words."""
        return await self._run(
            lambda _: _of_keys(tenant, text, limit, self._stages, generations=generations)
        )

    async def hit_place(self, tenant: Tenant, session_id: SessionId, seq: int) -> int | None:
        """Return the place of an item, or None if the tenant has no such item."""
        return await self._run_inline(lambda _: _hit_place(tenant, session_id, seq))

    async def own_hit(self, tenant: Tenant, place: int) -> int | None:
        """Return a place if it is that of an item of this tenant."""
        row = await self._run_inline(lambda _: one(sql.OWN_HIT, tenant, place))
        return row[0] if row is not None else None

    async def read_backlog(self, worker: WorkerId, limit: int) -> IndexLog | None:
        """Return the command that indexes the next entries."""
        batch = follower.BacklogBatch(limit)
        while count := batch.wanted():
            part = await self._read_slice(batch.upto, count)
            self._is_long = part.size() > follower.MAX_INLINE_BYTES
            if self._is_long:
                await asyncio.to_thread(batch.add, part)
            else:
                batch.add(part)
        return batch.command(worker)

    async def _read_slice(self, after: tuple[int, int] | None, limit: int) -> follower.BacklogSlice:
        # A thread that fetches rows takes the interpreter from the event loop for each of them, so
        # short entries are read on the loop; how long the next ones are is guessed from the last.
        run = self._run if self._is_long else self._run_inline
        return await run(lambda _: follower.read_slice(after, limit))

    async def backlog(self) -> int:
        """Return how many positions of the log are not indexed yet."""
        return await self._run(lambda _: follower.count_backlog())


def _of_keys(
    tenant: Tenant, text: str, limit: int, stages: Sequence[int], *, generations: bool
) -> Plan[list[SessionId]]:
    wants_all, end = int(generations), text + LAST_CHARACTER
    rows = yield from every(sql.SESSIONS_OF_PREFIX, tenant, text, end, wants_all, limit)
    ids = [SessionId(row[0]) for row in rows]
    phrases = tuple(key_phrase(phrase) for phrase in split_query(text))
    if not phrases or len(ids) == limit:
        return ids
    query = SearchQuery(text=text, limit=limit)
    of_words = yield from _Search(tenant, query, phrases, stages).sessions_of_keys()
    for session_id in of_words:
        if session_id in ids:
            continue
        row = yield from session_row(session_id)
        if row is not None and (generations or read_session(row).is_live):
            ids.append(session_id)
        if len(ids) == limit:
            break
    return ids


def _hit_place(tenant: Tenant, session_id: SessionId, seq: int) -> Plan[int | None]:
    owner = yield from find_session(session_id)
    if owner is None or owner.tenant != tenant or not owner.parent_seq < seq <= owner.head_seq:
        return None
    n = yield from find_number(owner, "seq", seq)
    entry = yield from one(ENTRY_PLACE, session_no(session_id), n)
    counts = yield from one(COUNTS, session_no(session_id), n)
    if entry is None or counts is None:
        return None
    row = yield from one(sql.HIT_PLACE, entry[1], counts[0] - seq)
    # An item may have been removed from the index since: a list goes on with the ones before it.
    return row[0] + row[1] if row is not None else 0


class _Match(msgspec.Struct, frozen=True):
    """An item that the index proposes, in a session that the query may see."""

    place: int
    pos: int
    back: int
    session: int
    seq: int
    at: float
    session_id: SessionId
    key: Key | None
    generation: int


class _Search:
    """One query, with what it has read about the index and the sessions so far."""

    def __init__(
        self,
        tenant: Tenant,
        query: SearchQuery,
        phrases: tuple[Phrase, ...],
        blocks_per_stage: Sequence[int],
    ) -> None:
        self._tenant = tenant
        self._query = query
        self._phrases = phrases
        self._blocks_per_stage = blocks_per_stage
        self._limit = min(max(query.limit, 1), MAX_HITS)
        self._filters: list[list[str]] = []
        self._first, self._end = 0, 0
        """The searched places: from the first, up to but not including the end."""
        self._records: dict[int, list[Record]] = {}
        """The records that hide items, by session."""

    def page(self) -> Plan[SearchPage]:
        """Return items with all terms, newest first; if there are none, items with some of them."""
        yield from self._prepare()
        hits: list[SearchHit] = []
        batch, before = self._limit + 1, self._end
        if self._query.after is not None:
            before = min(self._query.after, before)
        while True:
            matches = yield from self._matches(self._phrases, before, batch)
            hits += yield from self._hits(matches, self._phrases)
            if len(hits) > self._limit or len(matches) < batch:
                break
            before, batch = matches[-1].place, min(4 * batch, MAX_BATCH)
        if hits or self._query.after is not None or len(self._phrases) == 1:
            return SearchPage(tuple(hits[: self._limit]), has_more=len(hits) > self._limit)
        some = yield from self._some()
        return SearchPage(tuple(some), matches_all=not some)

    def sessions_of_keys(self) -> Plan[list[SessionId]]:
        """Return the sessions whose keys have all words, those that began last first."""
        yield from self._prepare()
        matches = yield from self._matches(self._phrases, self._end, MAX_BATCH)
        return [match.session_id for match in matches]

    def _prepare(self) -> Plan[None]:
        """Find the terms of the filters, and the range of places for the requested time."""
        query = self._query
        self._filters = [(yield from self._scope_terms())]
        if query.roles:
            self._filters.append([role_term(role) for role in query.roles])
        row = yield from one(sql.BOUNDS, *self._times())
        if row is not None and row[1] is not None:
            self._first = row[1] << BLOCK_BITS
            self._end = min((row[2] + 1) << BLOCK_BITS, row[0] + 1)

    def _scope_terms(self) -> Plan[list[str]]:
        """Return the most selective terms of which each item in the query's scope has one."""
        query, tenant = self._query, self._tenant
        if query.key is not None:
            return [owner_term(tenant, query.key, 0)]
        if query.session_id is not None:
            row = yield from session_row(query.session_id)
            key = read_session(row).key if row is not None else None
            return [owner_term(tenant, key, session_no(query.session_id))]
        if query.key_prefix:
            return (yield from self._prefix_terms(query.key_prefix))
        return [tenant_term(tenant)]

    def _prefix_terms(self, prefix: str) -> Plan[list[str]]:
        rows = yield from every(
            sql.KEYS_OF_PREFIX, self._tenant, prefix, prefix + LAST_CHARACTER, MAX_KEYS + 1
        )
        if len(rows) <= MAX_KEYS:
            return [owner_term(self._tenant, row[0], 0) for row in rows] or [NOTHING]
        parts = key_prefixes(prefix)
        return [prefix_term(self._tenant, parts[-1]) if parts else tenant_term(self._tenant)]

    def _times(self) -> tuple[float, float]:
        since, until = self._query.since, self._query.until
        return (-FOREVER if since is None else since), (FOREVER if until is None else until)

    def _some(self) -> Plan[list[SearchHit]]:
        """Return items with some of the terms; rarer and more terms rank higher."""
        counts: dict[Phrase, int] = {}
        for phrase in self._phrases:
            counts[phrase] = yield from self._count(phrase)
        rare = [phrase for phrase in self._phrases if counts[phrase] <= COMMON]
        common = [phrase for phrase in self._phrases if counts[phrase] > COMMON]
        ranked = (yield from self._ranked(rare, counts)) or (
            yield from self._ranked(common, counts)
        )
        hits: list[SearchHit] = []
        for first in range(0, len(ranked), self._limit):
            hits += yield from self._hits(ranked[first : first + self._limit], ())
            if len(hits) >= self._limit:
                break
        return hits[: self._limit]

    def _ranked(self, phrases: Sequence[Phrase], counts: dict[Phrase, int]) -> Plan[list[_Match]]:
        """Return the newest items with one of the phrases, the best first."""
        weights: dict[int, float] = {}
        matches: dict[int, _Match] = {}
        for phrase in phrases:
            weight = math.log(1 + COMMON / max(counts[phrase], 1))
            for match in (yield from self._matches((phrase,), self._end, CANDIDATES)):
                matches[match.place] = match
                weights[match.place] = weights.get(match.place, 0.0) + weight
        return sorted(matches.values(), key=lambda match: (-weights[match.place], -match.place))

    def _count(self, phrase: Phrase) -> Plan[int]:
        """Return how often a phrase occurs in the newest items, up to a limit."""
        last = (self._end - 1) >> BLOCK_BITS
        first = max(last - COUNTED_BLOCKS, self._first >> BLOCK_BITS)
        row = yield from one(
            sql.COUNT_MATCHES,
            fts5_query((phrase,), self._filters),
            phrases_tsquery((phrase,)),
            filters_tsquery(self._filters),
            filters_tsquery([block_terms(range(first, last + 1))]),
            first << BLOCK_BITS,
            COMMON + 1,
        )
        return row[0] if row else 0

    def _matches(self, phrases: Sequence[Phrase], before: int, limit: int) -> Plan[list[_Match]]:
        """Return items before a place that have all phrases, newest first."""
        query = self._query
        matches: list[_Match] = []
        for first, end, blocks in self._stages(before):
            rows = yield from every(
                sql.MATCHES,
                fts5_query(phrases, self._filters),
                phrases_tsquery(phrases),
                filters_tsquery(self._filters),
                filters_tsquery([block_terms(blocks)] if blocks else self._filters),
                self._tenant,
                first,
                end,
                query.key or "",
                query.key_prefix or "",
                session_no(query.session_id) if query.session_id is not None else 0,
                *self._times(),
                limit - len(matches),
            )
            matches += [_Match(*row) for row in rows]
            if len(matches) == limit:
                break
        return matches

    def _stages(self, end: int) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Yield ranges of places, newest first, with their blocks; the last has all others."""
        for count in (*self._blocks_per_stage, 0):
            if end <= self._first:
                return
            last = (end - 1) >> BLOCK_BITS
            first = max((last - count + 1) << BLOCK_BITS, self._first) if count else self._first
            yield first, end, range(first >> BLOCK_BITS, last + 1) if count else ()
            end = first

    def _hits(self, matches: Sequence[_Match], required: Sequence[Phrase]) -> Plan[list[SearchHit]]:
        """Return matches as they are in the log now, without those that may not be seen.

        Their text must contain all `required` phrases, and at least one of the query's.
        """
        if not matches:
            return []
        yield from self._read_records(match for match in matches)
        positions = sorted({match.pos for match in matches})
        rows = yield from every(sql.PAGE_ENTRIES, msgspec.json.encode(positions).decode())
        entries: dict[int, bytes | None] = {row[0]: row[1] for row in rows}
        hits = (self._hit(match, entries, required) for match in matches)
        return [hit for hit in hits if hit is not None]

    def _hit(
        self,
        match: _Match,
        entries: dict[int, bytes | None],
        required: Sequence[Phrase],
    ) -> SearchHit | None:
        hidden_by = {
            record.kind
            for record in self._records[match.session]
            if record.from_seq <= match.seq <= record.to_seq
        }
        if hidden_by and not (self._query.include_hidden and hidden_by <= FOUND_ON_REQUEST):
            return None
        packed = entries.get(match.pos)
        if packed is None:
            return None
        state = read_items(bytes(packed)).listed[-1 - match.back]
        text = item_text(state.body)
        if text is None:
            return None
        shown = snippet(text.text, self._phrases, required)
        if shown is None or not shown.highlights:
            return None
        return SearchHit(
            match.place, match.session_id, match.key, match.generation, match.seq,
            state.item_id, text.role, match.at, shown.text, shown.highlights, bool(hidden_by),
        )  # fmt: skip

    def _read_records(self, matches: Iterable[_Match]) -> Plan[None]:
        """Read the records that hide items, for sessions that the query has not met yet."""
        ids = {match.session: match.session_id for match in matches}
        new = sorted(ids.keys() - self._records.keys())
        if not new:
            return
        records: dict[int, list[Record]] = {session: [] for session in new}
        for session, body in (
            yield from every(sql.PAGE_RECORDS, msgspec.json.encode(new).decode())
        ):
            records[session] += read_records(body, ids[session])
        for session, listed in records.items():
            self._records[session] = [
                record for record in in_force(listed) if record.kind in HIDING
            ]
