"""A batch that is decided on from lanes in memory, and all that it writes, gathered.

Several commands about one session are decided on one after the other, each on the lane as the one
before leaves it. Their session's row is written once: as the last one leaves it, if it still has
the version that the first one was decided on.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.ids import SessionId, TurnId
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    JournalAdded,
    LogAppended,
    PartialSaved,
)
from holdfast.core.transaction.commands import Command
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.postgres.batch import Writes, next_writes, only_adds
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import marks
from holdfast.stores.sql.optimistic import decide_from_cache
from holdfast.stores.sql.plan import Ask, Statement


class CachedDecisions(NamedTuple):
    """A decision on each command of a batch, and what is to be written at once for all."""

    decisions: list[Decision[Any]]
    writes: Writes


def decide_batch_from_cache(
    commands: Sequence[Command[Any]], now: float, lanes: LaneCache
) -> CachedDecisions | None:
    """Return what a batch writes; none, if any of it needs reading or more than one statement.

    How it leaves its lanes is noted in them, for the caller to set aside until it is committed.
    """
    lanes.begin()
    batch = _Batch()
    decisions: list[Decision[Any]] = []
    for command in commands:
        decision = _decide(command, now, lanes, batch)
        if decision is None:
            lanes.rollback()
            return None
        decisions.append(decision)
    return CachedDecisions(decisions, batch.gathered())


def _decide(
    command: Command[Any], now: float, lanes: LaneCache, batch: "_Batch"
) -> Decision[Any] | None:
    if type(command) is cmd.MarkDelivered:
        turn_ids = [turn_id for turn_id, _ in command.steps]
        if not batch.mark(turn_ids, marks(command, now)):
            return None
        return Decision(None)
    planned = decide_from_cache(command, now, lanes)
    if planned is None:
        return None
    decision = planned.decision
    session_id = _session_of(decision.changes[0])
    if decision.woken or decision.aborted or session_id is None:
        return None
    if not batch.add(session_id, planned.writes):
        return None
    lanes.note(decision.changes)
    return decision


class _Batch:
    """What is to be written so far, no row of it twice."""

    def __init__(self) -> None:
        self._sessions: set[SessionId] = set()
        self._changed: set[SessionId] = set()
        """Sessions of which more is changed than that their log grows."""
        self._turns: set[TurnId] = set()
        self._gates: dict[SessionId, list[Ask]] = {}
        self._rest: Writes = {}

    def mark(self, turn_ids: Sequence[TurnId], asks: Sequence[Ask]) -> bool:
        """Take in which turns were delivered; return whether each is named once."""
        self._take(asks)
        count = len(self._turns) + len(turn_ids)
        self._turns.update(turn_ids)
        return len(self._turns) == count

    def add(self, session_id: SessionId, asks: Sequence[Ask]) -> bool:
        """Take in what a command writes about its session; return whether that can be at once."""
        is_growth = all(only_adds(statement) for statement, _ in asks)
        gate = asks[0]
        if session_id in self._sessions:
            if not is_growth or session_id in self._changed:
                return False
            # It is decided on behind an entry of this very batch: that one has the gate.
            gate = (sql.ADD_ENTRY, gate[1])
        self._sessions.add(session_id)
        if not is_growth:
            self._changed.add(session_id)
        self._gates.setdefault(session_id, []).append(gate)
        self._take(asks[1:])
        return is_growth or _fit(asks)

    def _take(self, asks: Sequence[Ask]) -> None:
        for statement, parameters in asks:
            sets = self._rest.get(statement)
            if sets is None:
                self._rest[statement] = [parameters]
            else:
                sets.append(parameters)

    def gathered(self) -> Writes:
        """Return everything, in an order that does not vary: so few texts have to be prepared.

        Gates come first, in the order of their sessions, so that two batches do not wait for
        each other.
        """
        found: Writes = {}
        for session_id in sorted(self._gates):
            for statement, parameters in self._gates[session_id]:
                found.setdefault(statement, []).append(parameters)
        for statement, sets in self._rest.items():
            found.setdefault(statement, []).extend(sets)
        return dict(sorted(found.items(), key=_gates_first))


def _gates_first(one: tuple[Statement, object]) -> tuple[bool, str]:
    return not one[0].is_fenced, one[0].name


def _session_of(change: Change) -> SessionId | None:
    """Return the session that the first change of a decision is about, if it has a gate."""
    match change:
        case LogAppended():
            return change.session.id
        case PartialSaved():
            return change.session_id
        case JournalAdded():
            return change.row.session_id
        case _:
            return None


def _fit(asks: Sequence[Ask]) -> bool:
    """Whether the writes of one command can be carried out at once."""
    queue = deque(asks)
    for _ in next_writes(queue):
        pass
    return not queue
