"""PostgreSQL: a fork that is created while its ancestor is erased inherits nothing erased."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.core.ids import SessionId
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Delete, Fork, Hide
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.entries import session_no
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.compaction import shown

SECONDS = 20.0
WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and cardinality(pg_blocking_pids(pid)) > 0"
)


@pytest.fixture(name="callers")
async def _callers(postgres_url: str) -> AsyncIterator[tuple[StoreClient, StoreClient]]:
    """Two processes with one database."""
    stores = await open_postgres(postgres_url), await open_postgres(postgres_url)
    yield StoreClient(stores[0]), StoreClient(stores[1], "o")
    for store in stores:
        await store.close()


def _fork(caller: StoreClient, session: Session) -> Fork:
    new_id = SessionId(caller.ids.new("ses"))
    return Fork(tenant=caller.tenant, session_id=session.id, new_id=new_id)


class Blocker:
    """Holds rows of the database, and sees who waits for locks."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> "Blocker":
        self._holder = await asyncpg.connect(self._url)
        self._observer = await asyncpg.connect(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._holder.close()
        await self._observer.close()

    @asynccontextmanager
    async def holding(self, table: str, session: Session) -> AsyncIterator[None]:
        """Lock the rows of a session in `sessions`, which is read first, or in `log`."""
        column = "no" if table == "sessions" else "session"
        text = f"select 1 from {table} where {column} = $1 for update"
        async with self._holder.transaction():
            await self._holder.fetch(text, session_no(session.id))
            yield

    async def waits_or_ends(self, task: "asyncio.Task[Any]", waiting: int) -> None:
        """Return when so many connections wait for locks, or the task has ended."""
        async with asyncio.timeout(SECONDS):
            is_waiting = False
            while not task.done() and not is_waiting:
                is_waiting = await self._observer.fetchval(WAITING) >= waiting


async def _fork_during(
    url: str, callers: tuple[StoreClient, StoreClient], command: Hide | Delete, fork: Fork
) -> Session | BaseException:
    """Fork a session at one process while the other carries out a command, before it writes."""
    caller, other = callers
    root = await caller.session(command.session_id)
    async with Blocker(url) as blocker:
        async with blocker.holding("log", root):
            erasing = asyncio.create_task(other.submit(command))
            await blocker.waits_or_ends(erasing, 1)
            forking = asyncio.create_task(caller.submit(fork))
            await blocker.waits_or_ends(forking, 2)
        await erasing
        return (await asyncio.gather(forking, return_exceptions=True))[0]


def _erase(caller: StoreClient, session: Session) -> Hide:
    return Hide(tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True)


async def test_a_fork_of_a_fork_does_not_show_what_is_erased_meanwhile(
    postgres_url: str, callers: tuple[StoreClient, StoreClient]
) -> None:
    caller, _ = callers
    root = (await caller.append("secret", "b", key="k")).session
    child = await caller.submit(_fork(caller, root))
    assert await shown(caller, child) == ["secret", "b"]
    made = await _fork_during(postgres_url, callers, _erase(caller, root), _fork(caller, child))
    assert isinstance(made, Session)
    assert await shown(caller, made) == ["b"]


async def test_a_fork_of_a_fork_does_not_outlive_a_cascade(
    postgres_url: str, callers: tuple[StoreClient, StoreClient]
) -> None:
    caller, _ = callers
    root = (await caller.append("secret", "b", key="k")).session
    child = await caller.submit(_fork(caller, root))
    erase = Delete(tenant=caller.tenant, session_id=root.id, cascade=True)
    fork = _fork(caller, child)
    await _fork_during(postgres_url, callers, erase, fork)
    assert await caller.read.session(caller.tenant, session_id=fork.new_id) is None


async def test_a_fork_that_is_created_while_an_erasure_waits_for_locks_is_locked_too(
    postgres_url: str, callers: tuple[StoreClient, StoreClient]
) -> None:
    caller, other = callers
    root = (await caller.append("secret", "b", key="k")).session
    child = await caller.submit(_fork(caller, root))
    assert await shown(caller, child) == ["secret", "b"]
    async with Blocker(postgres_url) as writes, Blocker(postgres_url) as locks:
        async with writes.holding("log", root):
            async with locks.holding("sessions", child):
                first = asyncio.create_task(caller.submit(_fork(caller, child)))
                await locks.waits_or_ends(first, 1)
                erasing = asyncio.create_task(other.submit(_erase(other, root)))
                await locks.waits_or_ends(erasing, 2)
            # The fork is created, and the erasure reads what it has to write.
            made = await first
            await locks.waits_or_ends(erasing, 1)
            second = asyncio.create_task(caller.submit(_fork(caller, made)))
            await locks.waits_or_ends(second, 2)
        await erasing
        assert await shown(caller, await second) == ["b"]
    assert await shown(caller, made) == ["b"]
