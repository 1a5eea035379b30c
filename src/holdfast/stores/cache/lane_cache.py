"""A cache of lanes as this process last wrote them, so that decisions on them need no read.

Each change of a lane, in any process, appends an entry to its session's log. A decision on a cached
lane is written only if the log still ends at the entry of the cached state. The changes of a failed
transaction must be removed: another entry may take the number of theirs. Lanes that wait for a
client's tools are not cached.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    LogAppended,
    PartialSaved,
    QueueDropped,
    QueueSaved,
)
from holdfast.core.transaction.facts import Facts, Waiting

MAX_BYTES = 8 * 1024 * 1024
LANE_BYTES = 2048
"""About the bytes of a cached lane without its content."""


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A live session, the turn and run that have its lane, if any, and the turns that wait."""

    session: Session
    active: Turn | None = None
    run: Run | None = None
    waiting: tuple[Turn, ...] = ()
    """In the order of their positions, with their input."""
    waiting_bytes: int = 0
    """About how much memory the waiting turns take."""
    queue: Waiting = Waiting()
    """The waiting turns, in the form that decisions read."""


class LaneCache:
    """The lanes that were used last, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0
        """About how much memory they take."""
        self._lanes: OrderedDict[SessionId, tuple[Lane, int]] = OrderedDict()
        self.find = self._lanes.get
        """Return a lane and its size, or None if it is not known."""
        self.keys: dict[tuple[Tenant, Key | None], SessionId] = {}
        """The live sessions of the cached lanes, by key."""
        self.expects_new_keys = True
        """Whether the last session that was read did not exist; the next one may not either."""
        self._before: dict[SessionId, Lane | None] | None = None
        """The lanes changed since `begin`, in their state before."""

    # ── what is known ───────────────────────────────────────────────────────────────────────

    def of_session(self, session_id: SessionId, worker: WorkerId, now: float) -> Facts | None:
        """Return the facts of a session's lane.

        None if another worker has the lane: whether it is alive is not known here.
        """
        cached = self._lanes.get(session_id)
        if cached is None:
            return None
        lane = cached[0]
        is_active = lane.active is not None
        if is_active and lane.session.owner != worker:
            return None
        return Facts(
            now=now, session=lane.session, has_live_owner=is_active, active=lane.active,
            active_run=lane.run, waiting=lane.queue,
        )  # fmt: skip

    def run_by(self, fence: Fence, now: float) -> Facts | None:
        """Return the facts of the lane that a run has, for what this run wants to write."""
        cached = self._lanes.get(fence.session_id)
        if cached is None or not fence.holds(cached[0].session):
            return None
        lane = cached[0]
        return Facts(
            now=now, session=lane.session, active=lane.active, active_run=lane.run,
            waiting=lane.queue,
        )  # fmt: skip

    def waiting_turn(self, session_id: SessionId, turn_id: TurnId) -> Turn | None:
        """Return a turn that waits in a lane that is known."""
        cached = self._lanes.get(session_id)
        for turn in cached[0].waiting if cached is not None else ():
            if turn.id == turn_id:
                return turn
        return None

    # ── what is learnt ──────────────────────────────────────────────────────────────────────

    def renew(self, facts: Facts) -> None:
        """Replace a lane that another process changed, or forget it if it cannot be cached."""
        if facts.session is not None:
            self.forget(facts.session.id)
            self.learn(facts)

    def learn(self, facts: Facts) -> None:
        """Add a lane that this transaction read, unless turns wait in it: those were not read."""
        session = facts.session
        self.expects_new_keys = session is None and facts.next_generation == 1
        if session is None or not session.is_live or facts.waiting.count:
            return
        if session.active_turn_id is None:
            self.put(Lane(session))
        elif facts.active is not None and facts.active_run is not None:
            self.put(Lane(session, facts.active, facts.active_run))
        else:
            self.forget(session.id)

    def note(self, changes: Sequence[Change]) -> None:
        """Apply what this transaction writes; drop a lane whose state is no longer certain."""
        session_id: SessionId | None = None
        for change in changes:
            match change:
                case LogAppended():
                    self._note_entries(change)
                    session_id = change.session.id
                case PartialSaved():
                    self._note_partial(change.session_id, change.run_id, change.body)
                case QueueSaved():
                    self._enqueue(change.turn)
                case QueueDropped() if session_id is not None:
                    self._dequeue(session_id, change.turn_id)
                case _:
                    pass

    def _enqueue(self, turn: Turn) -> None:
        cached = self._lanes.get(turn.session_id)
        if cached is None:
            return
        lane, waiting = cached[0], cached[0].waiting
        is_last = not waiting or waiting[-1].position < turn.position
        if is_last and turn.id not in [queued.id for queued in waiting]:
            size = lane.waiting_bytes + _waiting_bytes(turn)
            self.put(_with_waiting(lane, (*waiting, turn), size))
            return
        other_turns = [queued for queued in waiting if queued.id != turn.id]
        listed = sorted([*other_turns, turn], key=_position)
        self.put(_with_waiting(lane, tuple(listed), sum(map(_waiting_bytes, listed))))

    def _dequeue(self, session_id: SessionId, turn_id: TurnId) -> None:
        cached = self._lanes.get(session_id)
        if cached is None:
            return
        lane, size = cached[0], cached[0].waiting_bytes
        for place, turn in enumerate(lane.waiting):
            if turn.id == turn_id:
                remaining = lane.waiting[:place] + lane.waiting[place + 1 :]
                self.put(_with_waiting(lane, remaining, size - _waiting_bytes(turn)))
                return

    def _note_entries(self, change: LogAppended) -> None:
        session, before = change.session, change.before
        cached = self._lanes.get(session.id)
        if before is None:
            lane: Lane | None = Lane(session)
        elif cached is not None and cached[0].session.version == before.version:
            lane = cached[0]
        else:
            lane = None
        after = _after(lane, change) if lane is not None else None
        if after is None:
            self.forget(session.id)
        else:
            self.put(after)

    def _note_partial(self, session_id: SessionId, run_id: RunId, body: bytes) -> None:
        cached = self._lanes.get(session_id)
        if cached is not None and cached[0].run is not None and cached[0].run.id == run_id:
            self.put(replace(cached[0], run=replace(cached[0].run, partial=body)))

    def forget(self, session_id: SessionId) -> None:
        """Remove a lane."""
        cached = self._lanes.pop(session_id, None)
        if self._before is not None:
            self._before.setdefault(session_id, cached[0] if cached is not None else None)
        if cached is None:
            return
        session = cached[0].session
        self.held_bytes -= cached[1]
        if self.keys.get((session.tenant, session.key)) == session_id:
            del self.keys[session.tenant, session.key]

    # ── what is uncertain until it is committed ─────────────────────────────────────────────

    def begin(self) -> None:
        """Record changes from here on, so that they can be rolled back."""
        self._before = {}

    def commit(self) -> None:
        """Keep the changes since `begin`: they are durable."""
        self._before = None

    def rollback(self) -> None:
        """Restore the lanes to their state at `begin`."""
        before, self._before = self._before or {}, None
        for session_id, lane in before.items():
            self.forget(session_id)
            if lane is not None:
                self.put(lane)

    def clear(self) -> None:
        """Remove all lanes."""
        self._before = None
        self._lanes.clear()
        self.keys.clear()
        self.held_bytes = 0

    def put(self, lane: Lane) -> None:
        """Add or replace a lane; it becomes the most recently used one."""
        session, active, run = lane.session, lane.active, lane.run
        cached = self._lanes.pop(session.id, None)
        if cached is not None:
            self.held_bytes -= cached[1]
        if self._before is not None:
            self._before.setdefault(session.id, cached[0] if cached is not None else None)
        size = LANE_BYTES + len(session.metadata) + lane.waiting_bytes
        if session.key is not None:
            self.keys[session.tenant, session.key] = session.id
        if active is not None:
            size += len(active.request)
        if run is not None and (run.partial or run.heals):
            size += len(run.partial or b"") + len(run.heals or b"")
        self._lanes[session.id] = lane, size
        self.held_bytes += size
        while self.held_bytes > self._max_bytes:
            self.forget(next(iter(self._lanes)))


def _after(before: Lane, change: LogAppended) -> Lane | None:
    """Return a lane after entries, or None if its session ended or waits for a client's tools."""
    session = change.session
    turn_id = session.active_turn_id
    if not session.is_live or (turn_id is not None and session.active_run_id is None):
        return None
    if turn_id is None:
        return replace(before, session=session, active=None, run=None)
    active, run = before.active, before.run
    for entry in change.entries:
        if entry.turn is not None and entry.turn.id == turn_id:
            active = entry.turn
            for entry_run in entry.runs:
                if entry_run.id == session.active_run_id:
                    run = entry_run
    if active is None or active.id != turn_id or run is None or run.id != session.active_run_id:
        return None
    return replace(before, session=session, active=active, run=run)


def _with_waiting(lane: Lane, waiting: tuple[Turn, ...], size: int) -> Lane:
    queue = (
        Waiting(len(waiting), waiting[0].position, waiting[-1].position) if waiting else Waiting()
    )
    return replace(lane, waiting=waiting, waiting_bytes=size, queue=queue)


def _waiting_bytes(turn: Turn) -> int:
    return LANE_BYTES + len(turn.request) + len(turn.input or b"")


def _position(turn: Turn) -> int:
    return turn.position
