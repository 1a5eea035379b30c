"""A commit that fails at its very end: nobody is told that it was done, and nothing of it is there.

The database itself refuses the commit of any transaction that wrote a given word, whatever the
tables are.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.core.errors import StoreError
from holdfast.core.ids import Key
from holdfast.core.transaction.commands import Append, Appended
from holdfast.stores.open import sqlite_path
from holdfast.testing.store_client import StoreClient

WORD = "unlucky"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that others can change."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("bare_postgres_url"))


@asynccontextmanager
async def refusing(url: str) -> AsyncIterator[None]:
    """Have the database refuse every commit that wrote the word, for the length of a block."""
    statements = _on_sqlite if url.startswith("sqlite:") else _on_postgres
    await statements(url, is_on=True)
    try:
        yield
    finally:
        await statements(url, is_on=False)


async def _on_sqlite(url: str, *, is_on: bool) -> None:
    """Let rows with the word break a foreign key that is looked at when a transaction ends."""
    connection = sqlite3.connect(sqlite_path(url), isolation_level=None)
    try:
        connection.execute("create table if not exists absent (id integer primary key)")
        connection.execute(
            "create table if not exists refused "
            "(id integer references absent(id) deferrable initially deferred)"
        )
        for (table,) in connection.execute(
            "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' "
            # FTS5 writes its own tables, which take no triggers.
            "and name not in ('absent', 'refused') and name not like 'search_text%'"
        ).fetchall():
            connection.execute(f"drop trigger if exists refuse_{table}")
            columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
            # By their bytes: a text that is made of a blob ends at its first zero.
            row = " || ' ' || ".join(f"hex(coalesce(new.[{one}], ''))" for one in columns)
            if is_on:
                connection.execute(
                    f"create trigger refuse_{table} after insert on {table} "
                    f"when {row} like '%{WORD.encode().hex()}%' "
                    "begin insert into refused values (1); end"
                )
    finally:
        connection.close()


_REFUSE = f"""
create or replace function refuse() returns trigger language plpgsql as $$
begin
  if new::text like '%{WORD}%' or new::text like '%{WORD.encode().hex()}%' then
    raise 'refused';
  end if;
  return null;
end $$
"""


async def _on_postgres(url: str, *, is_on: bool) -> None:
    """Look at every row that was added when its transaction ends."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_REFUSE)
        tables = await connection.fetch(
            "select tablename from pg_tables where schemaname = 'public'"
        )
        for (table,) in tables:
            await connection.execute(f"drop trigger if exists refuse on {table}")
            if is_on:
                await connection.execute(
                    f"create constraint trigger refuse after insert on {table} "
                    "deferrable initially deferred for each row execute function refuse()"
                )
    finally:
        await connection.close()


async def test_a_commit_that_fails_is_not_answered_as_done(
    store_url: str, caller: StoreClient, other: StoreClient
) -> None:
    async with refusing(store_url):
        for _ in range(2):
            with pytest.raises(StoreError):
                await caller.append("x", key=WORD)
            for one in (caller, other):
                assert await one.read.session(one.tenant, key=Key(WORD)) is None
    appended = await caller.submit(replace(_last(caller), again=True))
    assert await other.texts(appended.session) == ["x"]


def _last(caller: StoreClient) -> Append:
    assert isinstance(caller.last, Append)
    return caller.last


async def test_one_that_cannot_be_committed_spoils_no_other_and_none_is_done_twice(
    store_url: str, caller: StoreClient, other: StoreClient
) -> None:
    keys = [f"k{number}" for number in range(12)]
    keys[5] = keys[8] = WORD
    async with refusing(store_url):
        outcomes = await asyncio.gather(
            *(caller.append(f"{number}", key=key) for number, key in enumerate(keys)),
            return_exceptions=True,
        )
        assert await caller.read.session(caller.tenant, key=Key(WORD)) is None
    for number, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
        if key == WORD:
            assert isinstance(outcome, StoreError)
            continue
        assert isinstance(outcome, Appended), outcome
        for one in (caller, other):
            assert await one.texts(outcome.session) == [f"{number}"]
        assert len(await other.read.turns(outcome.session.id)) == 1


async def test_a_turn_whose_end_cannot_be_committed_has_not_ended(
    store_url: str, caller: StoreClient, other: StoreClient
) -> None:
    run = await caller.start("a", key="k")
    waiting = await caller.wait("b", key="k")
    async with refusing(store_url):
        with pytest.raises(StoreError):
            await caller.finish(run, WORD)
        for one in (caller, other):
            assert await one.texts(run.session) == ["a"]
            view = await one.read.turn(one.tenant, run.turn.id)
            assert view is not None
            assert view.status == "running"
        await caller.finish(run, "c")
    claimed: Any = await caller.claim(waiting.turn)
    assert await other.texts(claimed.session) == ["a", "c", "b"]
