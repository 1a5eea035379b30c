"""Decide a batch from cached lanes and collect its writes.

Commands on one session are decided in order, each on the lane that the one before leaves. The
first entry of a session is gated: if the cache was stale, nothing of the batch is written. Then
the lanes that changed are read, and the batch is decided again.
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
from holdfast.stores.postgres.row_locks import Name
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import marks
from holdfast.stores.sql.optimistic.plain_turns import ADD_FIRST_SESSION, KEY_AT, PLANNERS
from holdfast.stores.sql.plan import Ask, Statement


class CachedDecisions(NamedTuple):
    """The decisions of a batch and its writes."""

    decisions: list[Decision[Any]]
    writes: Writes

    def sessions(self) -> list[SessionId | None]:
        """Return the session that each decision is about; delivery marks are about none."""
        return [
            _session_of(decision.changes[0]) if decision.changes else None
            for decision in self.decisions
        ]


def decide_batch_from_cache(
    commands: Sequence[Command[Any]], now: float, lanes: LaneCache
) -> CachedDecisions | None:
    """Return what a batch writes, or None if any command needs reads or a second statement.

    The lanes are changed; the caller commits the changes or rolls them back.
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
    return CachedDecisions(decisions, batch.collect())


def foreign_lanes(commands: Sequence[Command[Any]], lanes: LaneCache) -> dict[SessionId, int]:
    """Return the versions of cached lanes that another process may have changed meanwhile.

    Those are the lanes that no run of this process has. Somebody may write to the others too, but
    this is rare.
    """
    versions: dict[SessionId, int] = {}
    for command in commands:
        if not isinstance(command, cmd.Accept | cmd.Append):
            continue
        session_id = command.session_id or lanes.keys.get((command.tenant, command.key))
        cached = lanes.find(session_id) if session_id is not None else None
        if cached is not None:
            session = cached[0].session
            if cached[0].active is None or session.owner != command.worker:
                versions[session.id] = session.version
    return versions


def _decide(
    command: Command[Any], now: float, lanes: LaneCache, batch: "_Batch"
) -> Decision[Any] | None:
    if type(command) is cmd.MarkDelivered:
        turn_ids = [turn_id for turn_id, _ in command.steps]
        if not batch.mark(turn_ids, marks(command, now)):
            return None
        return Decision(None)
    planner = PLANNERS.get(type(command))
    planned = planner(command, now, lanes) if planner is not None else None
    if planned is None:
        return None
    decision = planned.decision
    session_id = _session_of(decision.changes[0])
    if session_id is None:
        return None
    if not batch.add(session_id, planned.writes):
        return None
    if planned.lane is not None:
        lanes.put(planned.lane)
    else:
        lanes.note(decision.changes)
    return decision


class _Batch:
    """The writes collected so far; no row is written twice."""

    def __init__(self) -> None:
        self._sessions: set[SessionId] = set()
        self._changed: set[SessionId] = set()
        """Sessions with changes other than log inserts."""
        self._turns: set[TurnId] = set()
        self._gates: dict[SessionId, list[Ask]] = {}
        self._rest: Writes = {}

    def mark(self, turn_ids: Sequence[TurnId], asks: Sequence[Ask]) -> bool:
        """Add delivery marks; return whether each turn is named once."""
        self._add(asks)
        count = len(self._turns) + len(turn_ids)
        self._turns.update(turn_ids)
        return len(self._turns) == count

    def add(self, session_id: SessionId, asks: Sequence[Ask]) -> bool:
        """Add the writes of a command; return whether one statement can do them."""
        is_growth = all(only_adds(statement) for statement, _ in asks)
        gate = asks[0]
        if session_id in self._sessions:
            if not is_growth or session_id in self._changed:
                return False
            # An earlier entry of this batch has the gate.
            gate = (sql.ADD_ENTRY, gate[1])
        self._sessions.add(session_id)
        if not is_growth:
            self._changed.add(session_id)
        self._gates.setdefault(session_id, []).append(gate)
        self._add(asks[1:])
        return is_growth or _fit(asks)

    def _add(self, asks: Sequence[Ask]) -> None:
        for statement, parameters in asks:
            sets = self._rest.get(statement)
            if sets is None:
                self._rest[statement] = [parameters]
            else:
                sets.append(parameters)

    def collect(self) -> Writes:
        """Return all writes in a fixed order, so that few statement texts are prepared.

        Gates come first, in the order of their sessions, so that two batches cannot deadlock. New
        sessions come in the order of their keys: two processes may make one under other ids.
        """
        writes: Writes = {}
        for session_id in sorted(self._gates):
            for statement, parameters in self._gates[session_id]:
                writes.setdefault(statement, []).append(parameters)
        for statement, sets in self._rest.items():
            writes.setdefault(statement, []).extend(sets)
        writes.get(ADD_FIRST_SESSION, []).sort(key=_by_key)
        return dict(sorted(writes.items(), key=_gates_first))


def _gates_first(write: tuple[Statement, object]) -> tuple[bool, str]:
    return not write[0].is_fenced, write[0].name


def _by_key(parameters: tuple[Any, ...]) -> str:
    """Return the sort key of a new session; `waves` sorts batches that read by the same."""
    return repr(Name("key", *parameters[KEY_AT]))


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
    """Whether one statement can do the writes of a command."""
    queue = deque(asks)
    for _ in next_writes(queue):
        pass
    return not queue
