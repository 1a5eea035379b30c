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
    Part,
    SessionSaved,
    TurnAdded,
    TurnSaved,
)
from holdfast.core.transaction.commands import Command
from holdfast.stores.cache.lane_cache import Lanes
from holdfast.stores.postgres.batch import Writes, next_writes, only_adds
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.command_plans import marks
from holdfast.stores.sql.optimistic import foresee
from holdfast.stores.sql.plan import Ask

_WIDTH: dict[Part, int] = {"log": 0, "lane": 1, "all": 2}


class Foreseen(NamedTuple):
    """A decision on each command of a batch, and what is to be written at once for all."""

    decisions: list[Decision[Any]]
    writes: Writes


def foresee_all(commands: Sequence[Command[Any]], now: float, lanes: Lanes) -> Foreseen | None:
    """Return what a batch writes; none, if any of it needs reading or more than one statement.

    How it leaves its lanes is noted in them, for the caller to set aside until it is committed.
    """
    lanes.begin()
    batch = _Batch()
    decisions: list[Decision[Any]] = []
    for command in commands:
        decision = _decide(command, now, lanes, batch)
        if decision is None:
            lanes.take_back()
            return None
        decisions.append(decision)
    return Foreseen(decisions, batch.gathered())


def _decide(
    command: Command[Any], now: float, lanes: Lanes, batch: "_Batch"
) -> Decision[Any] | None:
    if type(command) is cmd.Deliver:
        turn_ids = [turn_id for turn_id, _ in command.steps]
        if not batch.mark(turn_ids, marks(command, now)):
            return None
        lanes.forget_turns(turn_ids)
        return Decision(None)
    planned = foresee(command, now, lanes)
    if planned is None:
        return None
    decision = planned.decision
    if decision.woken or decision.aborted or not batch.add(decision.changes, planned.writes):
        return None
    lanes.note(decision.changes)
    return decision


class _Batch:
    """What is to be written so far, no row of it twice."""

    def __init__(self) -> None:
        self._saved: dict[SessionId, SessionSaved] = {}
        self._fences: dict[SessionId, Ask] = {}
        self._changed: set[SessionId] = set()
        """Sessions of which more is changed than their own row."""
        self._turns: set[TurnId] = set()
        self._rest: Writes = {}

    def mark(self, turn_ids: Sequence[TurnId], asks: Sequence[Ask]) -> bool:
        """Take in what marks turns, unless something else of them is written too."""
        self._take(asks)
        return self._reserve(turn_ids)

    def add(self, changes: Sequence[Change], asks: Sequence[Ask]) -> bool:
        """Take in what a command changes in its session; return whether that can be at once."""
        saved = changes[0]
        assert isinstance(saved, SessionSaved)
        session_id = saved.session.id
        before = self._saved.get(session_id)
        is_growth = all(only_adds(statement) for statement, _ in asks[1:])
        if before is None:
            self._saved[session_id] = saved
            self._fences[session_id] = asks[0]
        elif is_growth and session_id not in self._changed:
            whole = _both(before, saved)
            self._saved[session_id] = whole
            (self._fences[session_id],) = writes((whole,))
        else:
            return False
        if not is_growth:
            self._changed.add(session_id)
        self._take(asks[1:])
        return self._reserve(_turns(changes)) and (is_growth or _fit(asks))

    def _reserve(self, turn_ids: Sequence[TurnId]) -> bool:
        count = len(self._turns) + len(turn_ids)
        self._turns.update(turn_ids)
        return len(self._turns) == count

    def _take(self, asks: Sequence[Ask]) -> None:
        for statement, parameters in asks:
            sets = self._rest.get(statement)
            if sets is None:
                self._rest[statement] = [parameters]
            else:
                sets.append(parameters)

    def gathered(self) -> Writes:
        """Return everything, in an order that does not vary: so few texts have to be prepared.

        Sessions come first, in the order of their ids: everybody locks them like that.
        """
        found: Writes = {}
        for session_id in sorted(self._fences):
            statement, parameters = self._fences[session_id]
            found.setdefault(statement, []).append(parameters)
        return {**_by_name(found), **_by_name(self._rest)}


def _by_name(found: Writes) -> Writes:
    return dict(sorted(found.items(), key=lambda one: one[0].name))


def _both(first: SessionSaved, then: SessionSaved) -> SessionSaved:
    """Return the one write of a session's row that two of them come to."""
    return SessionSaved(then.session, first.read_version, max(first.part, then.part, key=_wide))


def _wide(part: Part) -> int:
    return _WIDTH[part]


def _turns(changes: Sequence[Change]) -> list[TurnId]:
    return [change.turn.id for change in changes if isinstance(change, TurnAdded | TurnSaved)]


def _fit(asks: Sequence[Ask]) -> bool:
    """Whether the writes of one command can be carried out at once."""
    queue = deque(asks)
    for _ in next_writes(queue):
        pass
    return not queue
