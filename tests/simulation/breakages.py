"""Guards that are disabled on purpose, one at a time, to test that the simulation notices.

Each is a patch from outside; the product contains nothing of this.
"""

import asyncio
import itertools
import re
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from msgspec.structs import replace

from holdfast.core.decisions import accept as admission
from holdfast.core.decisions import compact as compacting
from holdfast.core.decisions import idempotency as repeats
from holdfast.core.decisions import recovery as succession
from holdfast.core.decisions import run as run_end
from holdfast.core.decisions.channels import turns as stopping
from holdfast.core.decisions.lane import Settled, end_dead_owner
from holdfast.core.errors import HoldfastError, StoreUnavailable, TurnCancelled
from holdfast.core.ids import RunId, TurnId
from holdfast.core.model.delivery import gateway_key
from holdfast.core.model.items import ERASED_ITEM, StoredItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.tools.open_calls import OpenCalls, find_open_calls
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, IdempotencyRow, refuse
from holdfast.core.transaction.commands import (
    Accept,
    Claim,
    Command,
    Compact,
    Finish,
    Queued,
    Repeated,
    Reserve,
    Started,
)
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.core.transaction.session_draft import Draft
from holdfast.engine.model_call.caller import ModelCaller
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.turns import approvals, in_flight, tool_loop
from holdfast.engine.turns.in_flight import RunsInFlight
from holdfast.engine.turns.tool_loop import ToolLoop
from holdfast.engine.turns.tool_progress import ToolProgress
from holdfast.schedules import service as scheduling
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.sql import command_plans as planning
from holdfast.stores.sql import erasure, record_queries
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned, plan
from holdfast.stores.sql.entries import Body, Items, pack
from holdfast.stores.sql.plan import Ask, Plan, Statement
from holdfast.stores.sql.search import follower
from holdfast.stores.sql.search import statements as search
from holdfast.stores.sql.store import SqlDriver
from tests.simulation.disk import SimulatedDriver
from tests.simulation.tools import SimulatedTools
from tests.written_rows import SessionAdded, rows_of

ResultT = TypeVar("ResultT")

Patch = Callable[[], Iterator[None]]
Wrap = Callable[[SimulatedDriver], SqlDriver]

UNGATED = sql.APPEND_ENTRY._replace(
    text=re.sub(
        r"\(select n \+ 1.*?\?2\)\)",
        "(select coalesce(max(n), 0) + 1 from log where session = ?1 and ?2 is not null)",
        sql.APPEND_ENTRY.text,
    )
)
"""The statement that appends an entry, without its condition."""

WITHOUT_GUARDS = """
drop index sessions_live_key;
drop index sessions_generation;
drop index log_turn;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """One disabled guard."""

    name: str
    patches: tuple[tuple[Any, str, Any], ...] = ()
    wrap: Wrap | None = None
    without: str = ""
    is_unchecked: bool = False
    """Whether the database's own checks are disabled as well."""

    @contextmanager
    def applied(self) -> Generator[None]:
        """Run without the guard."""
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


# ── fences ──────────────────────────────────────────────────────────────────────────────────


def _always_holds(self: Fence, session: Session | None) -> bool:
    return session is not None and session.active_run_id is not None


def _holds_without_epoch(self: Fence, session: Session | None) -> bool:
    return (
        session is not None
        and session.deleted_at is None
        and session.is_live
        and session.generation == self.generation
        and session.active_run_id is not None
    )


# ── transactions torn in two ────────────────────────────────────────────────────────────────


class WrappedDriver(SqlDriver):
    """A driver that delegates to another one."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self.clock = driver.clock
        self._connection = driver.disk.connect()

    async def read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        return await self._driver.read(query)

    async def has_news(self) -> bool:
        return await self._driver.has_news()

    def abandon(self) -> None:
        self._driver.abandon()

    async def close(self) -> None:
        await self._driver.close()


class TornDriver(WrappedDriver):
    """Executes chosen commands in two steps: it reads, lets others act, and then writes."""

    def __init__(
        self, driver: SimulatedDriver, is_torn: Callable[[Command[Any], Planned], bool]
    ) -> None:
        super().__init__(driver)
        self._is_torn = is_torn

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Execute each command, in one step or in two."""
        results: list[Result] = []
        for command in commands:
            results.extend(await self._carry_out(command))
        return results

    async def _carry_out(self, command: Command[Any]) -> list[Result]:
        planned = _foresee(self._connection, command, self._driver.disk.clock.now())
        if not self._is_torn(command, planned):
            return await self._driver.commit([command])
        await asyncio.sleep(0.3)
        self._connection.execute("begin immediate")
        try:
            for ask in planned.writes:
                self._connection.execute(*_unfenced(ask))
        except sqlite3.Error as exc:
            self._connection.execute("rollback")
            return [StoreUnavailable(str(exc))]
        self._connection.execute("commit")
        self._driver.note([command], [planned.decision])
        return [planned.decision]


def _foresee(connection: sqlite3.Connection, command: Command[Any], now: float) -> Planned:
    """Return what a command would write, based on the current state."""
    steps = plan(command, now, LaneCache())
    try:
        ask = next(steps)
        while True:
            ask = steps.send(connection.execute(ask[0].text, ask[1]).fetchall())
    except StopIteration as stop:
        planned: Planned = stop.value
        return planned


def _unfenced(ask: Ask) -> Ask | tuple[str, tuple[Any, ...]]:
    """Return a write without its gate: an entry is appended wherever the log ends."""
    statement, values = ask
    return UNGATED.text if statement is sql.APPEND_ENTRY else statement.text, values


def _starts(command: Command[Any], planned: Planned) -> bool:
    return isinstance(command, Claim | Accept) and isinstance(planned.decision.outcome, Started)


def _creates(command: Command[Any], planned: Planned) -> bool:
    is_new = any(isinstance(row, SessionAdded) for row in rows_of(planned.decision.changes))
    return is_new and isinstance(command, Accept | Reserve)


# ── a queue in memory ───────────────────────────────────────────────────────────────────────


class ForgetfulDriver(WrappedDriver):
    """Keeps waiting turns in the process's memory, and writes them when they start."""

    def __init__(self, driver: SimulatedDriver) -> None:
        super().__init__(driver)
        self._waiting: dict[str, Accept] = {}

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Execute each command; a queued turn is only kept in memory."""
        return [await self._carry_out(command) for command in commands]

    async def _carry_out(self, command: Command[Any]) -> Result:
        if isinstance(command, Claim) and command.turn_id in self._waiting:
            accept = self._waiting[command.turn_id]
            anew = replace(accept, run_id=command.run_id, on_busy="enqueue", again=False)
            result = await self._take_in(anew)
            outcome = result.outcome if isinstance(result, Decision) else result
            if isinstance(outcome, Repeated):
                return refuse(TurnCancelled(command.turn_id, "session_reset"))
            return result
        if isinstance(command, Accept):
            return await self._take_in(command)
        return (await self._driver.commit([command]))[0]

    async def _take_in(self, command: Accept) -> Result:
        planned = _foresee(self._connection, command, self._driver.disk.clock.now())
        outcome = planned.decision.outcome
        if not isinstance(outcome, Queued) or outcome.turn.id != command.turn_id:
            self._waiting.pop(command.turn_id, None)
            return (await self._driver.commit([command]))[0]
        self._waiting.setdefault(command.turn_id, command)
        return Decision(outcome)


# ── lanes ───────────────────────────────────────────────────────────────────────────────────


def _settle_own(draft: Draft, facts: Facts, *, worker: Any, **more: Any) -> Settled:
    """Consider only the lanes of this process."""
    if facts.active is not None and draft.session.owner not in (None, worker):
        return Settled(True, Waiting())
    return end_dead_owner(draft, facts, worker=worker, **more)


# ── idempotency ─────────────────────────────────────────────────────────────────────────────


def _late_memory() -> tuple[tuple[Any, str, Any], ...]:
    """Bind idempotency keys when their turn is completed instead of when it is accepted."""
    rows: dict[str, IdempotencyRow] = {}

    def bind_key(
        draft: Draft, key: str | None, body_hash: bytes | None, turn_id: TurnId, step: int = 0
    ) -> None:
        if key is not None:
            tenant, now = draft.before.tenant, draft.now
            rows[turn_id] = IdempotencyRow(tenant, key, body_hash or b"", turn_id, step, now)

    def finish(command: Finish, facts: Facts) -> Decision[Any]:
        decision = run_end.finish(command, facts)
        if isinstance(decision.outcome, HoldfastError) or facts.active is None:
            return decision
        row = rows.pop(facts.active.id, None)
        if row is None:
            return decision
        return replace(decision, changes=(*decision.changes, row))

    decided: dict[type[Command[Any]], Any] = dict(planning._DECIDED)
    decided[cmd.Finish] = (decided[cmd.Finish][0], finish)
    return (
        (Draft, "bind_key", bind_key),
        (planning, "_DECIDED", decided),
    )


# ── summaries ───────────────────────────────────────────────────────────────────────────────


def _compact_for_anybody(command: Compact, facts: Facts) -> Decision[Any]:
    """Attribute a summary to whichever run has the lane now."""
    session = facts.session
    if session is not None:
        run_id = session.active_run_id or RunId("")
        facts = replace(facts, session=replace(session, is_live=True, active_run_id=run_id))
        fence = Fence(session.id, session.generation, run_id, session.epoch)
        command = replace(command, fence=fence)
    return compacting.compact(command, facts)


def _unfenced_summaries() -> tuple[tuple[Any, str, Any], ...]:
    decided: dict[type[Command[Any]], Any] = dict(planning._DECIDED)
    decided[Compact] = (decided[Compact][0], _compact_for_anybody)
    return ((planning, "_DECIDED", decided),)


# ── lanes in memory ─────────────────────────────────────────────────────────────────────────


def _believed_lanes() -> tuple[tuple[Any, str, Any], ...]:
    """Trust the cached lanes without checking for writes of others."""
    return ((sql, "APPEND_ENTRY", UNGATED),)


# ── tools ───────────────────────────────────────────────────────────────────────────────────


def _only_after_crashes() -> tuple[tuple[Any, str, Any], ...]:
    """Let only crashes, not clean stops, count as reasons why a call may have run."""
    may_have_run: Callable[..., Awaitable[set[str]]] = ToolLoop._may_have_run

    async def after_crashes(self: ToolLoop, progress: ToolProgress, due: Any) -> set[str]:
        is_after_crash = progress.run.turn.attempts > 1
        return await may_have_run(self, progress, due) if is_after_crash else set()

    return ((ToolLoop, "_may_have_run", after_crashes),)


async def _no_runs(self: ModelCaller, run: ActiveRun) -> list[Run]:
    return []


# ── approvals, schedules, stops and erasures ────────────────────────────────────────────────


def _with_approvals_only(items: Iterable[StoredItem]) -> OpenCalls:
    """Take every answer to an approval request for a yes."""
    left = find_open_calls(items)
    given = {name: replace(answer, approve=True) for name, answer in left.approvals.items()}
    return replace(left, approvals=given)


def _unclaimed() -> tuple[tuple[Any, str, Any], ...]:
    """Let every process that sees a due time run it."""
    count = itertools.count()
    return (
        (admission, "unclaimable", lambda *_: None),
        (scheduling, "gateway_key", lambda *parts: f"{gateway_key(*parts)}-{next(count)}"),
    )


# ── stopped readers ─────────────────────────────────────────────────────────────────────────


def _is_begun(live: LiveResponse) -> bool:
    """Take every reader that was shown something for one that has left."""
    return live.first_output is not None and bool(live.clients)


async def _is_nobody_waiting(*_: object) -> bool:
    return False


async def _is_always(*_: object, **__: object) -> bool:
    return True


def _unsettled() -> tuple[tuple[Any, str, Any], ...]:
    """Let the worker of a run obey a request that was withdrawn."""
    settle = RunsInFlight._is_granted

    async def is_granted(
        self: RunsInFlight, turn: Turn, caller: bytes, *, is_granted: bool
    ) -> bool:
        return is_granted or await settle(self, turn, caller, is_granted=is_granted)

    return ((RunsInFlight, "_is_granted", is_granted),)


def _ended_again() -> tuple[tuple[Any, str, Any], ...]:
    """End a cancelled turn again when it is cancelled again."""

    def cancel(command: cmd.Cancel, facts: Facts) -> Decision[Any]:
        decision = run_end.cancel(command, facts)
        turn, session = facts.turn, facts.session
        if turn is None or session is None or turn.outcome != "cancelled":
            return decision
        draft = Draft(session, now=facts.now)
        draft.save_turn(replace(turn, ended_at=facts.now + 1.0))
        return draft.decide(turn)

    decided: dict[type[Command[Any]], Any] = dict(planning._DECIDED)
    decided[cmd.Cancel] = (decided[cmd.Cancel][0], cancel)
    return ((planning, "_DECIDED", decided),)


def _no_copies(*_: Any) -> Plan[tuple[int, ...]]:
    yield from ()
    return ()


def _packed_without_events(value: Any) -> bytes:
    """Pack what an erasure leaves of an entry, without its events."""
    return pack(
        Body(value.turn, value.runs, value.records, []) if isinstance(value, Body) else value
    )


def _packed_without_items(value: Any) -> bytes:
    """Pack what an erasure leaves of an entry, with all of its items blank."""
    listed = value.listed if isinstance(value, Items) else ()
    for item in listed:
        item.body, item.fingerprint, item.call_id = ERASED_ITEM, b"", None
    return pack(value)


NOTHING = Statement("nothing", "delete from search_items where ?1 + ?2 + ?3 + ?4 + ?5 is null")


TOOL_PATCHES: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "calls run again": ((SimulatedTools, "repeatable", frozenset({"read", "write"})),),
    "stopped calls run again": _only_after_crashes(),
    "stopped conversations continued": ((ModelCaller, "earlier_runs", _no_runs),),
    "denied calls run": ((tool_loop, "find_open_calls", _with_approvals_only),),
    "anybody approves": ((approvals, "may_answer", lambda *_: True),),
    "due times not claimed": _unclaimed(),
    "stops repeated": ((stopping, "_record", lambda *_: ()),),
    "erased words indexed": (
        (search, "REMOVE_ITEMS", NOTHING),
        (follower, "_erased_ranges", lambda *_: ()),
    ),
    "journals kept": ((erasure, "ERASURES", ()),),
    "copies kept": ((record_queries, "_copies", _no_copies),),
    "events erased with a summary": ((erasure, "pack", _packed_without_events),),
    "neighbours erased": ((erasure, "pack", _packed_without_items),),
    "readers superseded": ((in_flight, "_is_stopped", _is_begun),),
    "waiting turns overtaken": ((RunsInFlight, "_has_waiters", _is_nobody_waiting),),
    "turns ended before a refusal": ((RunsInFlight, "_may_end", _is_always),),
    "shown text dropped": ((ActiveRun, "stop", lambda *_: False),),
    "withdrawn stops obeyed": _unsettled(),
    "turns ended twice": _ended_again(),
}


def breakage(name: str) -> Breakage:
    """Return a guard to disable; its state is new each time."""
    match name:
        case "fences off":
            return Breakage(name=name, patches=((Fence, "holds", _always_holds),))
        case "leases without epochs":
            return Breakage(name=name, patches=((Fence, "holds", _holds_without_epoch),))
        case "start unfenced":
            return Breakage(
                name=name,
                wrap=lambda driver: TornDriver(driver, _starts),
                without=WITHOUT_GUARDS,
                is_unchecked=True,
            )
        case "reservation in two steps":
            return Breakage(
                name=name, wrap=lambda driver: TornDriver(driver, _creates), without=WITHOUT_GUARDS
            )
        case "queue in memory":
            return Breakage(name=name, wrap=ForgetfulDriver)
        case "lane of one process":
            patches = (
                (admission, "end_dead_owner", _settle_own),
                (repeats, "end_dead_owner", _settle_own),
                (succession, "end_dead_owner", _settle_own),
            )
            return Breakage(name=name, patches=patches, without=WITHOUT_GUARDS)
        case "idempotency at the end":
            return Breakage(name=name, patches=_late_memory())
        case "summaries unfenced":
            return Breakage(name=name, patches=_unfenced_summaries())
        case "lanes believed":
            believed = _believed_lanes()
            return Breakage(name=name, patches=believed, without=WITHOUT_GUARDS, is_unchecked=True)
        case _:
            return Breakage(name=name, patches=TOOL_PATCHES[name])


BREAKAGES = (
    "fences off",
    "start unfenced",
    "reservation in two steps",
    "queue in memory",
    "leases without epochs",
    "lane of one process",
    "idempotency at the end",
    "summaries unfenced",
    "lanes believed",
    "calls run again",
    "stopped calls run again",
    "stopped conversations continued",
    "denied calls run",
    "anybody approves",
    "due times not claimed",
    "stops repeated",
    "erased words indexed",
    "journals kept",
    "copies kept",
    "events erased with a summary",
    "neighbours erased",
    "readers superseded",
    "waiting turns overtaken",
    "turns ended before a refusal",
    "shown text dropped",
    "withdrawn stops obeyed",
    "turns ended twice",
)
