"""Reads on the event loop itself: which, how long at most, and never out of date."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from holdfast.core.history import history_hash as history_hash_module
from holdfast.core.history.history_hash import EMPTY_HISTORY, Step
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.items import message
from holdfast.core.transaction.commands import Ended
from holdfast.ports.store import ItemQuery, Reader
from holdfast.stores.sql import queries, record_queries
from holdfast.stores.sql.plan import Plan, Row, Statement, every
from holdfast.stores.sql.store import SHORT_ROWS
from holdfast.stores.sqlite import driver
from holdfast.stores.sqlite.connection import INLINE_BYTES, INLINE_STEPS
from holdfast.stores.sqlite.driver import INLINE_ROWS
from holdfast.testing.store_client import StoreClient
from tests.unit.stores.sqlite.recording import RecordingConnection, a_store, an_append


async def test_a_few_rows_are_read_in_place_once_there_is_a_connection(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        found = []
        for last in (1, 1, SHORT_ROWS, SHORT_ROWS + 1, None):
            kind.asked.clear()
            found.append(await store.read.transcript(caller.tenant, key=Key("k"), last=last))
            places = {thread == here for sql, thread in kind.asked if sql == "begin"}
            # The first one has to open its connection, which may take long.
            assert places == {len(found) > 1}
        assert found == [found[0]] * 5
        assert found[0] is not None


async def test_a_read_in_place_that_is_refused_is_made_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()

    def refuse(sql: str) -> None:
        if sql == "begin" and threading.get_ident() == here:
            raise sqlite3.OperationalError("database is locked")

    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        before = await store.read.transcript(caller.tenant, key=Key("k"), last=1)
        kind.before = staticmethod(refuse)
        assert await store.read.transcript(caller.tenant, key=Key("k"), last=1) == before
        assert before is not None


def count_to(number: int) -> str:
    return f"with recursive n(i) as (select 1 union all select i + 1 from n limit {number}) "


SHORT_READS = (
    "select 1",
    count_to(INLINE_ROWS - 2) + "select i from n",
    count_to(100) + "select count(*) from n",
    f"select zeroblob({INLINE_BYTES})",
)


LONG_READS = (
    count_to(INLINE_ROWS) + "select i from n",
    count_to(100_000) + "select count(*) from n",
    f"select zeroblob({INLINE_BYTES + 1})",
)


@pytest.mark.parametrize(
    ("sql", "is_inline"),
    [*((sql, True) for sql in SHORT_READS), *((sql, False) for sql in LONG_READS)],
)
async def test_a_read_that_turns_out_to_be_long_begins_again_in_the_thread(
    sql: str, is_inline: bool, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()

    def query(_: float) -> Plan[list[Row]]:
        return (yield from every(Statement("test", sql)))

    async with a_store(tmp_path / "a.db", kind) as store:
        driver = store._driver
        expected = await driver.read(query)
        for _ in range(2):
            kind.asked.clear()
            assert await driver.read_inline(query) == expected
            assert (kind.asked[-1][1] == here) == is_inline
        # What only a read on the event loop may not do, the thread still may.
        assert await driver.read(query) == expected


@pytest.mark.parametrize("sql", LONG_READS)
async def test_a_read_after_one_that_was_stopped_sees_later_commits(
    sql: str, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    def query(_: float) -> Plan[list[Row]]:
        yield from every(Statement("first", "select count(*) from log"))
        return (yield from every(Statement("test", sql)))

    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        for count in range(1, 6):
            session = (await caller.append("a", key="k")).session
            view = await store.read.session(caller.tenant, session_id=session.id)
            assert view is not None
            assert view.session.head_seq == count
            await store._driver.read_inline(query)


async def test_short_reads_are_not_interrupted_however_often_they_run(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    # SQLite counts the steps of a statement over all its runs; these take as many each.
    here, steps = threading.get_ident(), 300
    first, second = (Statement(n, count_to(steps) + f"select count(*) {n} from n") for n in "ab")

    def query(_: float) -> Plan[list[Row]]:
        yield from every(first)
        return (yield from every(second))

    async with a_store(tmp_path / "a.db", kind) as store:
        await store._driver.read(query)
        kind.asked.clear()
        for _ in range(3 * INLINE_STEPS // steps):
            assert await store._driver.read_inline(query) == [(steps,)]
        assert {thread for _, thread in kind.asked} == {here}


async def test_any_number_of_short_reads_each_sees_what_is_committed(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    def query(_: float) -> Plan[None]:
        yield from ()

    async with a_store(tmp_path / "a.db", kind) as store:
        caller, read = StoreClient(store), store._driver.read_inline
        await read(query)
        # Even the few steps of `begin` and `rollback` add up.
        for count in range(1, 5):
            session = (await caller.append("a", key="k")).session
            for _ in range(INLINE_STEPS // 4):
                await read(query)
            view = await store.read.session(caller.tenant, session_id=session.id)
            assert view is not None
            assert view.session.head_seq == count


async def test_short_transcripts_are_read_in_place_and_long_ones_are_not(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await store.submit(an_append(SHORT_ROWS + 1, key="long"))
        appended = await caller.append("a", key="short")
        await store.read.session(DEFAULT_TENANT, session_id=appended.session.id)

        async def readers(key: str, last: int | None) -> set[bool]:
            kind.asked.clear()
            found = await store.read.transcript(DEFAULT_TENANT, key=Key(key), last=last)
            assert found is not None
            here = threading.get_ident()
            return {thread == here for sql, thread in kind.asked if "items from log" in sql}

        assert await readers("short", None) == {True}
        assert await readers("long", SHORT_ROWS) == {True}
        assert await readers("long", None) == {False}
        assert await readers("long", SHORT_ROWS + 1) == {False}


Read = Callable[[Reader, Ended], Awaitable[object]]


OF_A_REQUEST: dict[str, Read] = {
    "session": lambda read, end: read.session(DEFAULT_TENANT, session_id=end.session.id),
    "find_session": lambda read, end: read.find_session(DEFAULT_TENANT, session_id=end.session.id),
    "turn": lambda read, end: read.turn(DEFAULT_TENANT, end.turn.id),
    "runs": lambda read, end: read.runs(end.turn.id),
    "response": lambda read, end: read.response(DEFAULT_TENANT, end.turn.id, 0),
    "outline": lambda read, end: read.outline(
        DEFAULT_TENANT, session_id=end.session.id, last=SHORT_ROWS
    ),
    "items": lambda read, end: read.items(end.session, ItemQuery(limit=SHORT_ROWS)),
    "listing": lambda read, end: read.listing(end.session, ItemQuery(limit=SHORT_ROWS // 2)),
    "item": lambda read, end: read.item(end.session, "item_1"),
    "provider_state": lambda read, end: read.provider_state(end.session.id),
    "find_history": lambda read, _: read.find_history(DEFAULT_TENANT, [b"a"]),
    "stop_requests": lambda read, _: read.stop_requests(),
}


"""What the requests of clients read, each with the rows that most of them need."""


@pytest.mark.parametrize("name", OF_A_REQUEST)
async def test_what_most_requests_read_is_read_in_place(
    name: str, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        end = await StoreClient(store).converse("a", "b", key="k")
        await store.read.session(DEFAULT_TENANT, key=Key("k"))  # opens the connection
        kind.asked.clear()
        await OF_A_REQUEST[name](store.read, end)
        assert {thread for _, thread in kind.asked} == {threading.get_ident()}


async def test_short_contexts_are_read_in_place_and_long_ones_are_not(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, places = StoreClient(store), []
        for key, count in (("short", SHORT_ROWS), ("long", SHORT_ROWS + 1)):
            await caller.append(*map(str, range(count)), key=key)
            view = await store.read.session(DEFAULT_TENANT, key=Key(key))
            assert view is not None
            store._transcripts.clear()
            kind.asked.clear()
            assert len(await store.read.context(view.session)) == count
            here = threading.get_ident()
            places.append({at == here for sql, at in kind.asked if "items from log" in sql})
        assert places == [{True}, {False}]


async def test_a_long_cached_log_is_outlined_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_queries, "MAX_OUTLINED", SHORT_ROWS)
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, places = StoreClient(store), []
        for key, count in (("short", SHORT_ROWS), ("long", SHORT_ROWS + 1)):
            await caller.append(*map(str, range(count)), key=key)
            await store.read.session(DEFAULT_TENANT, key=Key(key))  # opens the connection
            kind.asked.clear()
            outline = await store.read.outline(DEFAULT_TENANT, key=Key(key))
            assert outline is not None
            assert len(outline.entries) == count
            places.append({thread == threading.get_ident() for _, thread in kind.asked})
        assert places == [{True}, {True, False}]


async def test_a_long_cached_log_is_hashed_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed_in: list[int] = []

    def extend_hash(history_hash: bytes, steps: Iterable[Step]) -> bytes:
        hashed_in.append(threading.get_ident())
        return history_hash_module.extend_hash(history_hash, steps)

    monkeypatch.setattr(queries, "MAX_HASHED", SHORT_ROWS)
    monkeypatch.setattr(queries, "extend_hash", extend_hash)
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, places = StoreClient(store), []
        for count in (SHORT_ROWS, SHORT_ROWS + 1):
            said = [message("user", f"{count}.{n}") for n in range(count)]
            steps: list[Step] = [(item.fingerprint, None) for item in said]
            whole = history_hash_module.extend_hash(EMPTY_HISTORY, steps)
            run = await caller.start(items=said[:-1])
            end = await caller.finish(run, items=said[-1:], history_hash=whole)
            await store.read.session(DEFAULT_TENANT, session_id=end.session.id)
            hashed_in.clear()
            assert await store.read.find_history(DEFAULT_TENANT, [whole]) is not None
            places.append({thread == threading.get_ident() for thread in hashed_in})
        assert places == [{True}, {False}]


async def test_a_context_that_is_too_large_to_be_kept_is_read_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        store.limit_cache(10_000)
        caller = StoreClient(store)
        appended = await caller.append("x" * 6_000, key="large")
        kind.asked.clear()
        assert len(await store.read.context(appended.session)) == 1
        places = {at for sql, at in kind.asked if "items from log" in sql}
        assert places
        assert threading.get_ident() not in places


async def test_many_values_that_are_long_together_are_read_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "COUNT_AFTER_SECONDS", 0.0)
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, here = StoreClient(store), threading.get_ident()
        for _ in range(40):
            appended = await caller.append("x" * (INLINE_BYTES - 4_000), key="k")
        await store.read.session(DEFAULT_TENANT, key=Key("k"))  # opens the connection
        places: list[set[bool]] = []
        for limit in (1, 40):
            kind.asked.clear()
            assert len(await store.read.items(appended.session, ItemQuery(limit=limit))) == limit
            places.append({at == here for sql, at in kind.asked if "items from log" in sql})
        assert places == [{True}, {True, False}]
