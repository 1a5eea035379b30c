"""A session's lane in somebody else's hand: an agent loop that is not ours runs in it.

It takes the lane, adds what it said batch by batch, and gives the lane back; a lane that is left
otherwise ends its turn as interrupted.
"""

import asyncio
import hashlib
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import (
    IdempotencyMismatch,
    RunFenced,
    RunStateUsed,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import OUTPUT_SUFFIX, NewItem, StoredItem
from holdfast.core.model.records import RecordKind, Span
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Outcome, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Continue,
    Finish,
    Hide,
    Queued,
    Repeated,
    Started,
)
from holdfast.engine.sessions.active_run import ActiveRun, Batch
from holdfast.engine.sessions.appending import append_batch
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import ItemQuery, SessionQuery

EXTEND_TRIES = 4
PAUSE_SECONDS = 0.1
LATEST = 8
"""Generations in which a parked run is looked for."""


class LaneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whose lane is wanted, and for which run."""

    tenant: Tenant
    key: Key
    run_id: str | None = None
    """Of one id there is one run: torn off it is begun anew, done it is not begun again."""
    asked: bytes = b""
    is_once: bool = False
    """A second time is refused, whatever became of the first."""
    is_own: bool = False
    """No other run can have this id. Where one may, an equal run parked later is another one."""
    resumes: tuple[str, ...] = ()
    """The calls that a parked run waits to make; what it said so far is brought to the head."""


class LaneEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run in a lane came to its end."""

    outcome: Outcome = "completed"
    code: str | None = None
    message: str | None = None
    result: str | None = None
    """What is left for a repeat of the run."""


class Done(msgspec.Struct, frozen=True):
    """A run of the same id was carried out before, and left this."""

    turn_id: TurnId
    result: str | None


class InRetiredGeneration(msgspec.Struct, frozen=True):
    """A parked run stands in a retired generation, and goes on there."""

    session_id: SessionId
    turn_id: TurnId
    ordinal: int


class ExternalLane:
    """One lane, from the wish for it to its end."""

    def __init__(self, gateway: Gateway, asked: LaneRequest) -> None:
        self._gateway = gateway
        self._asked = asked
        self._held: ActiveRun | None = None
        self._late = 0
        self._adding = asyncio.Lock()
        self._batches: dict[str, Batch] = {}
        """Those that this attempt was given."""
        self.elsewhere: InRetiredGeneration | None = None

    @property
    def run(self) -> ActiveRun:
        """The run, while it has the lane."""
        assert self._held is not None, "take the lane first"
        return self._held

    # ── taking it ───────────────────────────────────────────────────────────────────────────

    async def take(self) -> Done | None:
        """Wait for the lane; it is held afterwards, unless a run of this id is done."""
        gateway, accept = self._gateway, self._accept()
        while True:
            admission = await gateway.accept(accept)
            if self._asked.is_once and admission.turn.id != accept.turn_id:
                accept = await self._once_more(admission, accept)
                continue
            if not isinstance(admission, Repeated):
                await self._enter(admission)
                return None
            done = await self._carried_out(admission)
            if done is not None:
                return done
            accept = replace(accept, run_id=RunId(gateway.ids.new("run")))

    def _accept(self) -> Accept:
        gateway, asked = self._gateway, self._asked
        return Accept(
            tenant=asked.tenant,
            turn_id=TurnId(gateway.ids.new("turn")),
            run_id=RunId(gateway.ids.new("run")),
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=asked.key,
            idempotency_key=asked.run_id,
            body_hash=_hash(asked),
            limits=gateway.limits,
        )

    async def _enter(self, admission: Started | Queued) -> None:
        run = self._held = await self._gateway.enter(admission)
        try:
            turn = run.turn
            if turn.first_seq is not None and turn.last_seq is not None:
                # What an attempt left that was torn off: this one says it anew.
                await self._hide((turn.first_seq, turn.last_seq), "retry")
            if self._asked.resumes:
                await self._resume()
        except BaseException:
            self.leave()
            raise

    async def _hide(self, span: Span, kind: RecordKind) -> None:
        if span[0] > span[1]:
            return
        run = self.run
        await self._gateway.submit(
            Hide(
                tenant=run.turn.tenant,
                session_id=run.session.id,
                from_seq=span[0],
                to_seq=span[1],
                kind=kind,
            )
        )

    async def _once_more(self, admission: Started | Queued | Repeated, accept: Accept) -> Accept:
        """Refuse a second time, unless an equal run was parked since: that one is another.

        A first time that was torn off stays so, for good.
        """
        if not isinstance(admission, Repeated):
            self._held = await self._gateway.enter(admission)
            message = "it was torn off, and its tools may have run"
            await self.end(LaneEnd(outcome="failed", code=RunStateUsed.code, message=message))
        if self._asked.is_own or not await self._is_parked_after(admission.turn):
            raise RunStateUsed(
                f"this run was resumed before, as turn {admission.turn.id}; its tools may have run"
            )
        return replace(accept, idempotency_key=f"{self._asked.run_id}:{admission.turn.id}")

    async def _carried_out(self, repeated: Repeated) -> Done | None:
        """Wait for the one turn of this id; return its end, if it is one that counts."""
        gateway, turn, is_torn = self._gateway, repeated.turn, False
        if not repeated.is_settled:
            view = await gateway.wait_until_ended(turn.tenant, turn.id, step=repeated.step)
            turn, is_torn = view.turn, view.status == "interrupted"
        if turn.outcome == "cancelled":
            raise TurnCancelled(turn.id, turn.error_code)
        if turn.outcome == "failed" and not turn.is_retryable:
            raise TurnFailed(
                turn.error_message or "the run failed",
                failure_code=turn.error_code or TurnFailed.code,
            )
        if is_torn or turn.outcome == "failed":
            return None
        runs = await gateway.read.runs(turn.id)
        left = runs[-1].result if runs else None
        return Done(turn.id, left.decode() if left is not None else None)

    # ── a run that was parked ───────────────────────────────────────────────────────────────

    async def _resume(self) -> None:
        """Have a parked run go on where it stands: at the head, or in its own generation."""
        parked = await self._parked()
        if parked is None:
            return
        session, block = parked
        if session.id == self.run.session.id:
            await self._bring_up(block)
            return
        after = block[0].turn_number - 1
        turn = (await self._gateway.read.turns(session.id, after=after, limit=1))[0].turn
        self.elsewhere = InRetiredGeneration(session.id, turn.id, turn.step + 1)

    async def _parked(self) -> tuple[Session, list[StoredItem]] | None:
        """Return what the latest run said that waits for these calls, and where it stands."""
        for session in await self._generations():
            items = await self._gateway.read.items(session, ItemQuery())
            number = parked_turn(items, self._asked.resumes)
            if number is not None:
                return session, [item for item in items if item.turn_number == number]
        return None

    async def _generations(self) -> list[Session]:
        query = SessionQuery(key=self._asked.key, generations=True, limit=LATEST)
        views = await self._gateway.read.sessions(self._asked.tenant, query)
        return sorted((view.session for view in views), key=lambda one: -one.generation)

    async def _is_parked_after(self, turn: Turn) -> bool:
        """Whether a run waits for these calls that was parked later than that turn."""
        parked = await self._parked() if self._asked.resumes else None
        if parked is None:
            return False
        session, block = parked
        if session.id == turn.session_id:
            return block[0].turn_number > turn.number
        view = await self._gateway.read.session(turn.tenant, session_id=turn.session_id)
        # Resumed under another key, or in what is erased: nothing here is a run of its own.
        if view is None or view.session.key != self._asked.key:
            return False
        return session.generation > view.session.generation

    async def _bring_up(self, block: list[StoredItem]) -> None:
        """Move items from further back to the head, before what the run adds: they are its own."""
        first, last = block[0].seq, block[-1].seq
        if last < self.run.session.head_seq:
            await self._hide((first, last), "move")
            await self.run.extend([item.anew() for item in block])

    # ── using it ────────────────────────────────────────────────────────────────────────────

    async def add(self, items: tuple[NewItem, ...], batch: Batch | None = None) -> None:
        """Append to the run's block; what comes after a clear stays in the old generation.

        A batch counts once; what an attempt left that was torn off is no reason to leave it out.
        """
        async with self._adding:
            if batch is None:
                await self._add(items)
            else:
                await self._add_once(items, batch)

    async def _add_once(self, items: tuple[NewItem, ...], batch: Batch) -> None:
        if self.run.has_unsaved:
            await self._add(())
        known = self._batches.setdefault(batch.id, batch)
        if known.body_hash != batch.body_hash:
            raise IdempotencyMismatch(f"batch {batch.id!r} was used with other items")
        if known is not batch:
            return
        try:
            await self._add(items, batch)
        except IdempotencyMismatch:
            del self._batches[batch.id]
            raise

    async def _add(self, items: tuple[NewItem, ...], batch: Batch | None = None) -> None:
        given = items
        for left in reversed(range(EXTEND_TRIES)):
            try:
                await self.run.extend(given, batch=batch)
            except RunFenced:
                await self._add_late(items, batch)
            except StoreUnavailable:
                if not left:
                    raise
                given = ()  # the run has them in hand, and brings them along
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            return

    async def _add_late(self, items: tuple[NewItem, ...], batch: Batch | None) -> None:
        """The lane is lost: to a clear, whose old generation keeps the tail, or to another run."""
        gateway, turn, session = self._gateway, self.run.turn, self.run.session
        view = await gateway.read.session(turn.tenant, session_id=session.id)
        if view is None or view.session.is_live:
            raise RunFenced(f"run {self.run.fence.run_id} was taken for dead, and lost its lane")
        self._late += 1
        await append_batch(
            gateway,
            Continue(
                tenant=turn.tenant,
                turn_id=turn.id,
                ordinal=turn.step + self._late,
                worker=gateway.worker.id,
                candidate_id=gateway.new_session_id(),
                session_id=session.id,
                items=items,
                idempotency_key=batch.id if batch is not None else None,
                body_hash=batch.body_hash if batch is not None else None,
            ),
        )

    # ── giving it back ──────────────────────────────────────────────────────────────────────

    async def end(self, end: LaneEnd) -> None:
        """End the run; not even a cancelled caller keeps the end from being written."""
        run = self.run
        try:
            if not run.is_lost:
                await self._finish(run, end)
        finally:
            self.leave()

    async def _finish(self, run: ActiveRun, end: LaneEnd) -> None:
        command = Finish(
            fence=run.fence,
            outcome=end.outcome,
            result=end.result.encode() if end.result is not None else None,
            error_code=end.code,
            error_message=end.message,
            is_retryable=end.outcome != "completed" and not self._asked.is_once,
        )
        ending = asyncio.ensure_future(run.finish(command))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.gather(ending, return_exceptions=True)
            raise
        except RunFenced:
            # Cleared or taken over at the last moment: what was added is where it belongs.
            return

    def leave(self) -> None:
        """Go, with or without an end; one that is lacking is written as interrupted."""
        run, self._held = self._held, None
        if run is not None:
            self._gateway.leave(run)


def _hash(asked: LaneRequest) -> bytes:
    """Return what a repeat must have in common with the first: the session, and what was asked.

    A parked run is one under whatever key it is resumed.
    """
    if asked.is_once:
        return asked.asked
    return hashlib.blake2b(asked.key.encode() + b"\0" + asked.asked, digest_size=16).digest()


def parked_turn(items: Sequence[StoredItem], call_ids: Collection[str]) -> int | None:
    """Return the number of the turn whose calls, of these ids, have no outputs yet."""
    answered: set[str] = set()
    for item in reversed(items):
        if item.call_id is None or item.call_id not in call_ids:
            continue
        if item.kind.endswith(OUTPUT_SUFFIX):
            answered.add(item.call_id)
        elif item.call_id in answered:
            answered.discard(item.call_id)
        else:
            return item.turn_number
    return None
