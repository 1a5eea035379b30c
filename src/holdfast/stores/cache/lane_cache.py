"""Lanes as this process left them: what it wrote last it need not read before it writes again.

Kept are lanes in which nobody waits: idle ones, and those that a run has. Their facts are the rows
of a session, its turn and its run. Whoever changes one of them, in any process, gives the session
another version, and a decision on a lane from here is worth nothing unless the session still has
the lane's version in the transaction that writes it. What was noted of a transaction that failed
must be forgotten: the version that it would have made may come to mean something else.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    RunAdded,
    RunSaved,
    SessionAdded,
    SessionSaved,
    TurnAdded,
    TurnSaved,
)
from holdfast.core.transaction.facts import Facts

MAX_BYTES = 8 * 1024 * 1024
LANE_BYTES = 2048
"""About what a lane costs beside what was said in it."""
_SESSION = frozenset({SessionAdded, SessionSaved})
_TURN = frozenset({TurnAdded, TurnSaved})
_RUN = frozenset({RunAdded, RunSaved})


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A live session, and the turn and run that have its lane, if any; nobody waits."""

    session: Session
    active: Turn | None = None
    run: Run | None = None


class Lanes:
    """The lanes that were used last, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lanes: OrderedDict[SessionId, tuple[Lane, int]] = OrderedDict()
        self._keys: dict[tuple[Tenant, Key], SessionId] = {}
        self._turns: dict[TurnId, SessionId] = {}
        self._before: dict[SessionId, Lane | None] | None = None
        """How lanes were that have changed since `begin`."""

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._bytes

    # ── what is known ───────────────────────────────────────────────────────────────────────

    def idle_of_key(self, tenant: Tenant, key: Key | None, now: float) -> Facts | None:
        """Return the facts of the idle lane of a key's live session."""
        if key is None:
            return None
        session_id = self._keys.get((tenant, key))
        return self.idle(session_id, now) if session_id is not None else None

    def idle(self, session_id: SessionId, now: float) -> Facts | None:
        """Return the facts of an idle lane."""
        known = self._lanes.get(session_id)
        if known is None or known[0].active is not None:
            # Whether the owner of a run still lives is not known here.
            return None
        return Facts(now=now, session=known[0].session)

    def run_by(self, fence: Fence, now: float) -> Facts | None:
        """Return the facts of the lane that a run has, for what this run wants to write."""
        known = self._lanes.get(fence.session_id)
        if known is None or not fence.holds(known[0].session):
            return None
        lane = known[0]
        return Facts(now=now, session=lane.session, active=lane.active, active_run=lane.run)

    # ── what is learnt ──────────────────────────────────────────────────────────────────────

    def learn(self, facts: Facts) -> None:
        """Keep a lane that was read in this transaction."""
        session = facts.session
        if session is None or not session.is_live or facts.waiting.count:
            return
        if session.active_turn_id is None:
            self._keep(Lane(session))
        elif facts.active is not None and facts.active_run is not None:
            self._keep(Lane(session, facts.active, facts.active_run))
        else:
            self.forget(session.id)

    def note(self, changes: Sequence[Change]) -> None:
        """Take in what this transaction writes; a lane that is not certain then is forgotten."""
        sessions: list[SessionAdded | SessionSaved] = []
        turns: list[Turn] = []
        runs: list[Run] = []
        written: Sequence[Any] = changes
        for change in written:
            kind = type(change)
            if kind in _TURN:
                turns.append(change.turn)
            elif kind in _RUN:
                runs.append(change.run)
            elif kind in _SESSION:
                sessions.append(change)
        lane = self._after(sessions[0], turns, runs) if len(sessions) == 1 else None
        if lane is not None:
            self._keep(lane)
            return
        for one in sessions:
            self.forget(one.session.id)
        for turn in turns:
            self.forget(turn.session_id)
        for run in runs:
            self.forget(run.session_id)

    def _after(
        self, change: SessionAdded | SessionSaved, turns: Sequence[Turn], runs: Sequence[Run]
    ) -> Lane | None:
        """Return a lane after changes, if it is certain that nobody waits in it."""
        session = change.session
        if not isinstance(change, SessionSaved):
            return _after(Lane(session), session, turns, runs)
        known = self._lanes.get(session.id)
        if known is None or known[0].session.version != change.read_version:
            return None
        return _after(known[0], session, turns, runs)

    def forget(self, session_id: SessionId) -> Lane | None:
        """Know a lane no more; return what it was."""
        known = self._lanes.pop(session_id, None)
        if self._before is not None:
            self._before.setdefault(session_id, known[0] if known is not None else None)
        if known is None:
            return None
        lane, size = known
        self._bytes -= size
        session = lane.session
        if session.key is not None:
            self._keys.pop((session.tenant, session.key), None)
        if lane.active is not None:
            self._turns.pop(lane.active.id, None)
        return lane

    def forget_turns(self, turn_ids: Iterable[TurnId]) -> None:
        """Know the lanes of these turns no more."""
        for turn_id in turn_ids:
            session_id = self._turns.get(turn_id)
            if session_id is not None:
                self.forget(session_id)

    # ── what is uncertain until it is committed ─────────────────────────────────────────────

    def begin(self) -> None:
        """Remember how lanes are from here on, until they are taken back or set aside."""
        self._before = {}

    def take_back(self) -> None:
        """Have the lanes as they were at `begin`."""
        before, self._before = self._before or {}, None
        for session_id, lane in before.items():
            self.forget(session_id)
            if lane is not None:
                self._keep(lane)

    def set_aside(self) -> list[Lane]:
        """Know no more what was noted since `begin`; return it, to be kept once it is committed."""
        before, self._before = self._before or {}, None
        found = [self.forget(session_id) for session_id in before]
        return [lane for lane in found if lane is not None]

    def keep(self, lanes: Iterable[Lane]) -> None:
        """Know these lanes: they were committed."""
        for lane in lanes:
            self._keep(lane)

    def clear(self) -> None:
        """Know nothing any more."""
        self._before = None
        self._lanes.clear()
        self._keys.clear()
        self._turns.clear()
        self._bytes = 0

    def _keep(self, lane: Lane) -> None:
        """Put a lane in, in its own place, as the one that was used last."""
        session, active, run = lane.session, lane.active, lane.run
        known = self._lanes.pop(session.id, None)
        if known is not None:
            self._bytes -= known[1]
            if known[0].active is not None:
                self._turns.pop(known[0].active.id, None)
        if self._before is not None:
            self._before.setdefault(session.id, known[0] if known is not None else None)
        size = LANE_BYTES + len(session.metadata)
        if session.key is not None:
            self._keys[session.tenant, session.key] = session.id
        if active is not None:
            self._turns[active.id] = session.id
            size += len(active.request)
        if run is not None and (run.partial or run.heals):
            size += len(run.partial or b"") + len(run.heals or b"")
        self._lanes[session.id] = lane, size
        self._bytes += size
        while self._bytes > self._max_bytes:
            self.forget(next(iter(self._lanes)))


def _after(
    before: Lane, session: Session, turns: Sequence[Turn], runs: Sequence[Run]
) -> Lane | None:
    left, wanted = before.active, session.active_turn_id
    for turn in turns:
        if turn.session_id != session.id or (turn.outcome is None and turn.id != wanted):
            return None
        if left is not None and turn.id == left.id:
            left = None
    if not session.is_live or (left is not None and left.id != wanted):
        # It lost the lane, and nothing says that it ended.
        return None
    if wanted is None:
        return Lane(session)
    active = _named(wanted, turns, before.active)
    run = _named(session.active_run_id, runs, before.run)
    return Lane(session, active, run) if active is not None and run is not None else None


def _named(wanted: str | None, written: Sequence[Any], before: Any) -> Any:
    """Return the row of that id, as it was written last."""
    for row in reversed(written):
        if row.id == wanted:
            return row
    return before if before is not None and before.id == wanted else None
