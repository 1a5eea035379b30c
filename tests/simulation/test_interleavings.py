"""Every interleaving of the critical paths: each order of two processes' steps is gone through.

Two processes with stores of their own on one database race for a key, a lane, a start, an end.
Seeds sample the orders of large worlds; here the orders of small ones are enumerated. A transaction
runs in place, as one step, so what is reordered is what processes can reorder: all that lies
between transactions. (Partial-order reduction as frontrun does it is of no help here: it follows
shared Python memory, and takes two tasks that meet only in a database for independent. The last
test, a look and a creation that others can come between, passes under it after a single order.)
"""

import asyncio
import itertools
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId, SessionId
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.transaction.commands import (
    Claim,
    Command,
    Delete,
    ExpireWorker,
    Queued,
    Recover,
    Reset,
    Started,
)
from holdfast.engine.embedded.function_model import FunctionModel
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.executor import TurnExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.ports.store import SessionQuery
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.simulation.disk import open_connection, template
from tests.simulation.schedule import every_order
from tests.store_tables import Tables, read_tables

_names = itertools.count(1)


class Race:
    """Two processes at one database, and what they were told."""

    def __init__(self, before: "Race | None" = None) -> None:
        self._name = f"race{next(_names)}"
        self._open: list[sqlite3.Connection] = []
        self.keeper = self._connect()
        (before.keeper if before else template("")).backup(self.keeper)
        self.clock = ManualClock()
        tokens = ProcessTokens()
        self.callers = [StoreClient(self._store(tokens), name) for name in ("a", "b")]
        self.told: list[Any] = []
        self.queued: list[Queued] = before.queued if before else []
        self.started: list[Started] = before.started if before else []

    def _store(self, tokens: ProcessTokens) -> SqlStore:
        driver = SqliteDriver(self._connect, clock=self.clock, writer=InlineExecutor())
        return SqlStore(driver, tokens)

    def _connect(self) -> sqlite3.Connection:
        self._open.append(open_connection(self._name))
        return self._open[-1]

    def close(self) -> None:
        """Let the database go."""
        for connection in self._open:
            connection.close()

    def tables(self) -> Tables:
        """Return what the durable log says."""
        return read_tables(self.keeper)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Return what is durable."""
        return self.keeper.execute(text).fetchall()

    async def ask(self, place: int, command: Command[Any]) -> None:
        """Send a command from one of the processes, and note what it was told."""
        try:
            self.told.append(await self.callers[place].store.submit(command))
        except HoldfastError as exc:
            self.told.append(exc)

    def names(self) -> list[str]:
        """Return what was told, in no order."""
        return sorted(type(told).__name__ for told in self.told)


Worker = Callable[[Race], Awaitable[None]]


def explore(
    workers: list[Worker],
    is_right: Callable[[Race], bool],
    prepare: Callable[[Race], Awaitable[None]] | None = None,
) -> None:
    """Go through every order of the workers' steps, from one beginning; check what each leaves."""
    before = Race()
    asyncio.run(_prepare(before, prepare))

    async def program() -> None:
        race = Race(before)
        await asyncio.gather(*(worker(race) for worker in workers))
        assert is_right(race), f"an order breaks it: {race.told}"
        race.close()

    assert every_order(program) > 20
    before.close()


async def _prepare(race: Race, prepare: Callable[[Race], Awaitable[None]] | None) -> None:
    for caller in race.callers:
        await caller.enlist()
    if prepare is not None:
        await prepare(race)


def claims(place: int, which: int = 0) -> Worker:
    """Return a process that asks for the lane for a waiting turn."""

    async def worker(race: Race) -> None:
        caller = race.callers[place]
        run_id = RunId(f"run_of_{place}")
        turn = race.queued[which].turn
        await race.ask(place, Claim(turn_id=turn.id, run_id=run_id, worker=caller.worker))

    return worker


async def resets(race: Race) -> None:
    """Begin the next generation."""
    session = (race.queued or race.started)[0].session
    await race.ask(
        1, Reset(tenant=session.tenant, session_id=session.id, new_id=SessionId("ses_next"))
    )


async def ends(race: Race) -> None:
    """End the run that is under way."""
    try:
        race.told.append(await race.callers[0].finish(race.started[0], "done"))
    except HoldfastError as exc:
        race.told.append(exc)


async def two_wait(race: Race) -> None:
    """Let two turns wait in a lane that has just come free."""
    first = await race.callers[0].start("first", key="k")
    race.queued.append(await race.callers[0].wait("second", key="k"))
    race.queued.append(await race.callers[1].wait("third", key="k"))
    await race.callers[0].finish(first, "done")


async def one_runs(race: Race) -> None:
    """Let a turn run."""
    race.started.append(await race.callers[0].start("first", key="k"))


def test_two_first_contacts_give_one_session_and_two_turns() -> None:
    def contact(place: int) -> Worker:
        async def worker(race: Race) -> None:
            await race.ask(place, race.callers[place].arrival("hi", key="k"))

        return worker

    def is_right(race: Race) -> bool:
        tables = race.tables()
        return (
            len(tables.sessions) == 1
            and len(tables.turns) == 2
            and race.names() == ["Queued", "Started"]
        )

    explore([contact(0), contact(1)], is_right)


def test_one_request_sent_twice_is_one_turn() -> None:
    def send(place: int) -> Worker:
        async def worker(race: Race) -> None:
            arrival = race.callers[place].arrival("hi", key="k", idempotency_key="i", body_hash=b"")
            await race.ask(place, arrival)

        return worker

    def is_right(race: Race) -> bool:
        return len(race.tables().turns) == 1 and race.names() == ["Repeated", "Started"]

    explore([send(0), send(1)], is_right)


def test_a_turn_that_two_claim_is_started_once() -> None:
    def is_right(race: Race) -> bool:
        return len(race.tables().open_runs) == 1 and race.names() == ["Queued", "Started"]

    explore([claims(0), claims(1)], is_right, two_wait)


def test_of_two_waiting_turns_the_first_starts_whoever_asks_first() -> None:
    def is_right(race: Race) -> bool:
        active = [session.active_turn_id for session in race.tables().sessions.values()]
        return active == [race.queued[0].turn.id]

    explore([claims(0, 0), claims(1, 1)], is_right, two_wait)


def test_a_start_that_meets_a_reset_marks_no_generation_as_running() -> None:
    def is_right(race: Race) -> bool:
        tables = race.tables()
        live = [(one.id, one.active_turn_id) for one in tables.sessions.values() if one.is_live]
        is_quiet = not tables.open_turns and not tables.open_runs and not tables.lanes
        return live == [("ses_next", None)] and is_quiet

    explore([claims(0), resets], is_right, two_wait)


def test_an_end_that_meets_a_reset_is_whole_or_changes_nothing() -> None:
    def is_right(race: Race) -> bool:
        tables = race.tables()
        ((outcome, code),) = [(one.outcome, one.error_code) for one in tables.turns.values()]
        items = tables.every_item
        is_whole = (outcome, code, len(items)) == ("completed", None, 2)
        is_fenced = (outcome, code, len(items)) == ("cancelled", "session_reset", 1)
        names = ["Ended", "Session"] if is_whole else ["RunFenced", "Session"]
        return (is_whole or is_fenced) and race.names() == names

    explore([ends, resets], is_right, one_runs)


def test_an_end_that_meets_its_own_recovery_is_written_once() -> None:
    async def recovers(race: Race) -> None:
        heir, session = race.callers[1], race.started[0].session
        await heir.store.submit(ExpireWorker(worker=race.callers[0].worker))
        await race.ask(1, Recover(session_id=session.id, worker=heir.worker))

    def is_right(race: Race) -> bool:
        tables = race.tables()
        (turn,) = [one.outcome for one in tables.turns.values()]
        (run,) = [one.outcome for one in tables.runs.values()]
        items = len(tables.every_item)
        return (turn, run, items) in (
            ("completed", "completed", 2),
            ("interrupted", "interrupted", 1),
        )

    explore([ends, recovers], is_right, one_runs)


def test_two_resets_of_one_session_begin_one_generation() -> None:
    def reset(place: int) -> Worker:
        async def worker(race: Race) -> None:
            session = race.started[0].session
            new_id = SessionId(f"ses_next_{place}")
            await race.ask(
                place, Reset(tenant=session.tenant, session_id=session.id, new_id=new_id)
            )

        return worker

    def is_right(race: Race) -> bool:
        generations = race.rows("select generation from sessions order by generation")
        return generations == [(1,), (2,)] and race.names() == ["Session", "SessionChanged"]

    explore([reset(0), reset(1)], is_right, one_runs)


async def _says_nothing(items: list[dict[str, Any]]) -> str:
    return ""


def test_a_repeat_that_meets_a_deletion_gets_the_whole_answer_or_none() -> None:
    asked = TurnRequest(api="responses", model="m", fields={})

    async def one_ends(race: Race) -> None:
        race.started.append(
            await race.callers[0].start("hi", key="k", request=write_request(asked))
        )
        await ends(race)

    async def deletes(race: Race) -> None:
        session = race.started[0].session
        await race.ask(1, Delete(tenant=session.tenant, session_id=session.id))

    async def repeats(race: Race) -> None:
        caller, turn = race.callers[0], race.started[0].turn
        gateway = Gateway(caller.store, clock=race.clock, ids=caller.ids)
        service = TurnService(
            gateway, TurnExecutor(gateway, lambda _: FunctionModel(_says_nothing))
        )
        try:
            view = await gateway.wait_until_ended(turn.tenant, turn.id)
            result = await service.load_result(turn.tenant, view.turn, turn.step)
            race.told += result.response.output or ["nothing"]
        except HoldfastError as exc:
            race.told.append(exc)

    def is_right(race: Race) -> bool:
        deleted, *answer = race.names()
        return deleted == "Session" and answer in (["bytes"], ["SessionDeleted"], ["TurnNotFound"])

    explore([repeats, deletes], is_right, one_ends)


def test_the_exploration_finds_a_reservation_that_looks_first() -> None:
    """The alarm rings: a look at the store and a creation that others can come between."""

    def reserve(place: int) -> Worker:
        async def worker(race: Race) -> None:
            caller = race.callers[place]
            if not await caller.read.sessions(caller.tenant, SessionQuery()):
                await caller.reserve()

        return worker

    def is_right(race: Race) -> bool:
        return len(race.rows("select * from sessions")) == 1

    with pytest.raises(AssertionError, match="an order breaks it"):
        explore([reserve(0), reserve(1)], is_right)
