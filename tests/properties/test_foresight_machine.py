"""What is decided without a look is what a look would have decided, whoever else writes."""

import itertools
import sqlite3
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.items import message
from holdfast.core.transaction.commands import (
    Accept,
    Append,
    Cancel,
    Claim,
    Command,
    Deliver,
    Ended,
    Extend,
    Finish,
    Queued,
    Renew,
    Reset,
    Started,
)
from holdfast.stores.cache.lane_cache import Lanes
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.sql.command_plans import Planned, plan
from holdfast.stores.sql.optimistic import foresee
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import HandClock

_names = itertools.count()
KEYS = st.sampled_from(["a", "b"])
PROCESSES = st.sampled_from([0, 1])


def _connect(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:/{name}?vfs=memdb", uri=True, isolation_level=None, check_same_thread=False
    )


class TrustingDriver(SqliteDriver):
    """Never asks whether others wrote, and looks all the same before it believes a fence."""

    foreseen = 0

    def _doubt_lanes(self, connection: sqlite3.Connection) -> None:
        pass

    def _carry_out(self, cursor: sqlite3.Cursor, command: Command[Any], now: float) -> Any:
        ahead = foresee(command, now, self._lanes)
        if ahead is not None and _holds(cursor, ahead):
            self.foreseen += 1
            looked = _look(cursor, command, now)
            assert ahead.writes == looked.writes
            assert type(ahead.decision.outcome) is type(looked.decision.outcome)
            assert ahead.decision.woken == looked.decision.woken
        return super()._carry_out(cursor, command, now)


def _holds(cursor: sqlite3.Cursor, planned: Planned) -> bool:
    """Return whether the fence of a decision would let it through."""
    *_, session_id, version = planned.writes[0][1]
    row = cursor.execute("select version from sessions where id = ?", (session_id,)).fetchone()
    return row is not None and row[0] == version


def _look(cursor: sqlite3.Cursor, command: Command[Any], now: float) -> Planned:
    steps = plan(command, now, Lanes())
    try:
        statement, parameters = next(steps)
        while True:
            rows = cursor.execute(statement.text, parameters).fetchall()
            statement, parameters = steps.send(rows)
    except StopIteration as stop:
        planned: Planned = stop.value
        return planned


class ForesightMachine(RuleBasedStateMachine):
    """Two processes on one database that remember lanes and never doubt them."""

    def __init__(self) -> None:
        super().__init__()
        name = f"foresight-{next(_names)}"
        self.keeper = _connect(name)
        self.clock = HandClock()
        self.drivers = [
            TrustingDriver(lambda: _connect(name), clock=self.clock, writer=InlineExecutor())
            for _ in range(2)
        ]
        self.drivers[0]._migrate()
        self.workers = [WorkerId("wrk_0"), WorkerId("wrk_1")]
        for number, worker in enumerate(self.workers):
            self.do(number, Renew(worker=worker, lease_seconds=1e9, is_new=True))
        self.count = 0
        self.started: list[Started] = []
        self.queued: list[Queued] = []
        self.ended: list[Ended] = []

    def teardown(self) -> None:
        for driver in self.drivers:
            driver._write_link.close()
        self.keeper.close()

    def do(self, process: int, command: Command[Any]) -> Any:
        """Have a command carried out by one of the processes."""
        self.clock.advance(1.0)
        (result,) = self.drivers[process]._commit([command])
        assert not isinstance(result, BaseException), result
        return result.outcome

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count:04}"

    def mine(self, process: int) -> list[Started]:
        return [one for one in self.started if one.run.worker == self.workers[process]]

    @rule(process=PROCESSES, key=KEYS, on_busy=st.sampled_from(["enqueue", "reject", "interrupt"]))
    def arrive(self, process: int, key: str, on_busy: Any) -> None:
        command = Accept(
            tenant=DEFAULT_TENANT, turn_id=TurnId(self.new("turn")), run_id=RunId(self.new("run")),
            worker=self.workers[process], candidate_id=SessionId(self.new("ses")), key=Key(key),
            items=(message("user", "hi"),), on_busy=on_busy,
        )  # fmt: skip
        outcome = self.do(process, command)
        if isinstance(outcome, Started):
            self.started.append(outcome)
        elif isinstance(outcome, Queued):
            self.queued.append(outcome)

    @rule(process=PROCESSES, key=KEYS)
    def append(self, process: int, key: str) -> None:
        command = Append(
            tenant=DEFAULT_TENANT, turn_id=TurnId(self.new("turn")), worker=self.workers[process],
            candidate_id=SessionId(self.new("ses")), key=Key(key), items=(message("user", "so"),),
        )  # fmt: skip
        self.do(process, command)

    @rule(process=PROCESSES, data=st.data(), calls=st.sampled_from([(), ("call_1",)]))
    def finish(self, process: int, data: st.DataObject, calls: tuple[str, ...]) -> None:
        for run in self.mine(process)[-1:]:
            outcome: Any = data.draw(st.sampled_from(["completed", "failed"]))
            ended = self.do(
                process,
                Finish(
                    fence=run.fence, outcome=outcome, items=(message("assistant", "yes"),),
                    pending_calls=calls, is_retryable=True,
                ),
            )  # fmt: skip
            if isinstance(ended, Ended):
                self.ended.append(ended)
                self.started.remove(run)

    @rule(process=PROCESSES, is_begun=st.booleans())
    def extend(self, process: int, is_begun: bool) -> None:
        for run in self.mine(process)[-1:]:
            begun = (message("assistant", "I w"),) if is_begun else None
            self.do(
                process,
                Extend(fence=run.fence, items=(message("assistant", "well"),), partial=begun),
            )

    @rule(process=PROCESSES)
    def claim(self, process: int) -> None:
        for waiting in self.queued[:1]:
            command = Claim(
                turn_id=waiting.turn.id, run_id=RunId(self.new("run")), worker=self.workers[process]
            )
            outcome = self.do(process, command)
            if not isinstance(outcome, Queued):
                self.queued.remove(waiting)
            if isinstance(outcome, Started):
                self.started.append(outcome)

    @rule(process=PROCESSES, is_waiting=st.booleans())
    def cancel(self, process: int, is_waiting: bool) -> None:
        turns = [one.turn for one in (self.queued if is_waiting else self.started)]
        for turn in turns[-1:]:
            self.do(process, Cancel(tenant=DEFAULT_TENANT, turn_id=turn.id))

    @rule(process=PROCESSES)
    def deliver(self, process: int) -> None:
        steps = tuple((one.turn.id, one.turn.step) for one in self.ended[-2:])
        running = tuple((one.turn.id, one.turn.step) for one in self.started[-1:])
        self.do(process, Deliver(steps=steps + running))

    @rule(process=PROCESSES, key=KEYS)
    def reset(self, process: int, key: str) -> None:
        live = "select id from sessions where key = ? and is_live = 1"
        row = self.keeper.execute(live, (key,)).fetchone()
        if row is not None:
            command = Reset(
                tenant=DEFAULT_TENANT, session_id=row[0], new_id=SessionId(self.new("ses"))
            )
            self.do(process, command)


TestForesight = ForesightMachine.TestCase
TestForesight.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_machine_has_something_to_foresee() -> None:
    machine = ForesightMachine()
    try:
        for _ in range(3):
            machine.arrive(0, "a", "enqueue")
            machine.do(0, Finish(fence=machine.started.pop().fence, outcome="completed"))
        # Neither the first turn, which makes the session, nor anything else is read for.
        assert machine.drivers[0].foreseen == 5
    finally:
        machine.teardown()
