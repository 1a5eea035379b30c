"""The durable part of a world: a shared database, its faults, and its journal.

Every replica has its own connection to one database in memory, and runs the real SQL.
"""

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId
from holdfast.core.model.items import ERASED_ITEM
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Command
from holdfast.ports.clock import Clock
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.sql import migrations
from holdfast.stores.sql.entries import Items, ItemState, read_body, read_items
from holdfast.stores.sql.plan import Plan
from holdfast.stores.sql.store import SqlDriver
from holdfast.stores.sqlite.driver import DIALECT, SqliteDriver
from tests.store_tables import Tables, read_tables

ResultT = TypeVar("ResultT")

_names = itertools.count(1)

# Committed history is only appended to. Any other change is recorded here, for the promises.
WATCHES = """
create table sim_touched (what text, session_id text, at integer);
create trigger sim_items_updated after update of items on log when old.items is not null begin
  insert into sim_touched select t.value ->> 0, s.id, t.value ->> 1
    from sessions s, json_each(items_touched(old.items, new.items, old.seq)) t
    where s.no = old.session; end;
create trigger sim_entries_deleted after delete on log begin
  insert into sim_touched select 'item deleted', id, old.seq from sessions
    where no = old.session; end;
create trigger sim_bodies_updated after update of body on log begin
  insert into sim_touched select t.value ->> 0, s.id, t.value ->> 1
    from sessions s, json_each(body_touched(old.body, new.body, old.n)) t
    where s.no = old.session; end;
create trigger sim_entries_moved after update of pos, txid, session, n, kind, at, turn, seq, turns,
  events, record, head, request on log begin
  insert into sim_touched select 'entry rewritten', id, old.n from sessions
    where no = old.session; end;
create trigger sim_turns_ended after insert on log when new.turn is not null and exists (
  select 1 from log o where o.turn = new.turn and o.n < new.n
    and is_end_undone(o.body, new.body)) begin
  insert into sim_touched select 'end of turn or run undone', id, new.n from sessions
    where no = new.session; end;
create trigger sim_ends_lost after insert on log when new.kind = 6 and not exists (
  select 1 from log o where o.session = new.session and o.n = new.n - 1 and o.turn = new.turn
    and o.kind <> 6) begin
  insert into sim_touched select 'end of turn not in the index', id, new.n from sessions
    where no = new.session; end;
create trigger sim_epochs_fall after insert on log when exists (
  select 1 from log o where o.session = new.session and o.n = new.n - 1
    and epoch_of(o.head) > epoch_of(new.head)) begin
  insert into sim_touched select 'epoch fell', id, new.n from sessions where no = new.session; end;
create trigger sim_dead_rise after update on sessions
  when old.deleted_at is not null and new.deleted_at is null begin
  insert into sim_touched values ('deleted came back', old.id, 0); end;
"""


def _items_touched(old: bytes, new: bytes | None, last_seq: int) -> str:
    """Return, as JSON, which items of an entry were changed; blanking leaves kind and id."""
    before = read_items(old)
    after = read_items(new) if new is not None else Items(before.turn_number, [])
    first = last_seq - len(before.listed) + 1
    if (before.turn_number, len(before.listed)) != (after.turn_number, len(after.listed)):
        return _touched([("item deleted", last_seq)])
    found: list[tuple[str, int]] = []
    for seq, (one, other) in enumerate(zip(before.listed, after.listed, strict=True), first):
        blank = ItemState(one.kind, one.item_id, None, b"", one.is_partial, ERASED_ITEM)
        if one != other:
            found.append(("item blanked" if other == blank else "item rewritten", seq))
    return _touched(found)


def _body_touched(old: bytes, new: bytes, n: int) -> str:
    """Return, as JSON, what was changed of an entry: the input of its turn, a summary, or more."""
    before, after = read_body(old), read_body(new)
    found: list[tuple[str, int]] = []
    turn = before.turn
    if turn is not None and turn.input is not None and after.turn and after.turn.input is None:
        found.append(("input blanked", turn.number))
        turn.input = None
    for one, other in zip(before.records, after.records, strict=False):
        if one.kind == "compaction" and one.body is not None and other.body is None:
            found.append(("summary blanked", one.no))
            one.body = None
    if before != after:
        found.append(("entry rewritten", n))
    return _touched(found)


def _touched(found: list[tuple[str, int]]) -> str:
    return msgspec.json.encode(found).decode()


def _is_end_undone(old: bytes, new: bytes) -> bool:
    """Whether an entry replaces the final outcome of a turn or run by another one."""
    before, after = read_body(old), read_body(new)
    outcome = before.turn.outcome if before.turn is not None else None
    now = after.turn.outcome if after.turn is not None else None
    if outcome in ("completed", "cancelled") and now != outcome:
        return True
    ends = {run.id: run.outcome for run in before.runs if run.outcome is not None}
    return any(ends.get(run.id, run.outcome) != run.outcome for run in after.runs)


def _epoch_of(head: bytes) -> int:
    epoch: int = msgspec.msgpack.decode(head)[0]
    return epoch


def _add_functions(connection: sqlite3.Connection) -> None:
    """Add SQL functions with which the triggers read entries."""
    connection.create_function("is_end_undone", 2, _is_end_undone, deterministic=True)
    connection.create_function("items_touched", 3, _items_touched, deterministic=True)
    connection.create_function("body_touched", 3, _body_touched, deterministic=True)
    connection.create_function("epoch_of", 1, _epoch_of, deterministic=True)


FaultKind = Literal["crash", "crash_all", "unavailable", "freeze"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a process at its own (or the world's) n-th write."""

    write: int
    kind: FaultKind
    when: Literal["before", "after"] = "before"
    seconds: float = 0.0
    """How long a frozen process stays frozen, or a crashed one stays down."""


@dataclass(frozen=True, slots=True)
class Written:
    """One executed command: the journal of the world, in commit order."""

    at: float
    """By the loop's time, which no step of the clock changes."""
    write: int
    replica: str
    command: Command[Any]
    result: Result


class Victim(Protocol):
    """A process that faults can hit."""

    name: str

    def strike(self, fault: Fault) -> None:
        """Apply the fault; a crashed process takes no further step."""
        ...


def open_connection(name: str) -> sqlite3.Connection:
    """Return a connection to the database of that name, which exists while any is open."""
    connection = sqlite3.connect(
        f"file:/{name}?vfs=memdb",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.execute("pragma journal_mode = memory")
    connection.execute("pragma synchronous = off")
    connection.execute("pragma foreign_keys = on")
    _add_functions(connection)
    return connection


@cache
def template(without: str) -> sqlite3.Connection:
    """Return a migrated database with triggers; `without` are statements that remove guards."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _add_functions(connection)
    for step in migrations.all_migrations():
        for statement in step.statements(DIALECT):
            connection.execute(statement)
    connection.executescript(WATCHES)
    connection.executescript(without)
    return connection


@dataclass
class Disk:
    """The database, its journal, and the faults that wait for their write."""

    clock: Clock
    rng: random.Random
    faults: dict[int, list[Fault]]
    without: str = ""
    is_checked: bool = True
    latencies: Sequence[float] = (0.0,)
    trace: list[Any] = field(default_factory=list)
    journal: list[Written] = field(default_factory=list)
    writes: int = 0
    unheard: int = 0
    """Commits that succeeded although their reply was lost."""
    is_over: bool = False

    def __post_init__(self) -> None:
        self._name = f"world{next(_names)}"
        self._keeper = open_connection(self._name)
        template(self.without).backup(self._keeper)
        self._open: list[sqlite3.Connection] = []

    def connect(self) -> sqlite3.Connection:
        """Open one more connection."""
        connection = open_connection(self._name)
        if not self.is_checked:
            connection.execute("pragma ignore_check_constraints = on")
        self._open.append(connection)
        return connection

    def tables(self) -> Tables:
        """Return the content of the durable log."""
        return read_tables(self._keeper)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return rows of the durable state."""
        return self._keeper.execute(text).fetchall()

    def close(self) -> None:
        """Close the database."""
        for connection in [*self._open, self._keeper]:
            connection.close()


class SimulatedDriver(SqlDriver):
    """The real driver on a disk that is slow, fails, and kills processes at chosen writes."""

    def __init__(self, disk: Disk, victim: Victim) -> None:
        self.disk = disk
        self._victim = victim
        self.inner = SqliteDriver(disk.connect, clock=disk.clock, writer=InlineExecutor())
        self.clock = disk.clock

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Execute a batch, or apply the fault planned for this write."""
        disk = self.disk
        pause = disk.rng.choice(disk.latencies)
        if pause:
            await asyncio.sleep(pause)
        self._look_at_the_clock()
        disk.writes += 1
        number = disk.writes
        faults = disk.faults.pop(number, ())
        await self._suffer(fault for fault in faults if fault.when == "before")
        results = await self.inner.commit(commands)
        self.note(commands, results)
        await self._suffer(fault for fault in faults if fault.when == "after")
        return results

    async def read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read."""
        self._look_at_the_clock()
        return await self.inner.read(query)

    async def read_inline(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read, and let others act before it, as the real driver does."""
        await asyncio.sleep(0)
        return await self.read(query)

    async def has_news(self) -> bool:
        """Whether another connection wrote."""
        self._look_at_the_clock()
        return await self.inner.has_news()

    def abandon(self) -> None:
        """Leave the connections to be closed with the disk."""

    async def close(self) -> None:
        """The disk closes its connections itself."""

    def _look_at_the_clock(self) -> None:
        if self.disk.is_over:
            raise asyncio.CancelledError

    def note(self, commands: Sequence[Command[Any]], results: Sequence[Result]) -> None:
        """Record the executed commands."""
        at, number = asyncio.get_running_loop().time(), self.disk.writes
        for command, result in zip(commands, results, strict=True):
            written = Written(at, number, self._victim.name, command, result)
            self.disk.journal.append(written)
            self.disk.trace.append(written)

    async def _suffer(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            if fault.kind == "unavailable":
                if fault.when == "after":
                    self.disk.unheard += 1
                raise StoreUnavailable(f"write {fault.write} was not answered")
            self._victim.strike(fault)
            if fault.kind == "freeze":
                # The next step runs when the process thaws.
                await asyncio.sleep(0)
            else:
                await asyncio.get_running_loop().create_future()


class SimulatedTokens:
    """Liveness tokens of every simulated process; dead processes lose theirs at once."""

    def __init__(self) -> None:
        self.held: dict[WorkerId, str] = {}

    def of(self, holder: str) -> "HeldTokens":
        """Return the tokens from the view of one process."""
        return HeldTokens(self, holder)

    def release(self, holder: str) -> None:
        """Release everything that a dead process held."""
        self.held = {worker: name for worker, name in self.held.items() if name != holder}


class HeldTokens:
    """One process's view of the tokens."""

    def __init__(self, every: SimulatedTokens, holder: str) -> None:
        self._every = every
        self._holder = holder

    async def take(self, worker: WorkerId) -> None:
        """Hold the worker's token."""
        self._every.held[worker] = self._holder

    async def living(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held."""
        return await self.held(workers)

    async def held(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held."""
        return {worker for worker in workers if worker in self._every.held}

    async def drop(self, worker: WorkerId) -> None:
        """Release the token."""
        self._every.held.pop(worker, None)

    async def close(self) -> None:
        """Do nothing: the system releases the tokens when the process ends."""


def outcome_of(written: Written) -> Any:
    """Return the result of a journalled command: its outcome or its error."""
    return written.result.outcome if isinstance(written.result, Decision) else written.result
