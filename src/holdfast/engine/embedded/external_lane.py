"""A session's lane for an agent loop outside this gateway.

The loop acquires the lane, adds its items batch by batch, and releases the lane. A lane that is
left without a release ends its turn as interrupted.
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
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import OUTPUT_SUFFIX, NewItem, StoredItem
from holdfast.core.model.records import RecordKind, Span
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Outcome, Turn
from holdfast.core.transaction.commands import (
    Accept,
    AppendBatch,
    Finish,
    Hide,
    Queued,
    Repeated,
    Started,
)
from holdfast.engine.sessions.active_run import ActiveRun, Batch
from holdfast.engine.sessions.appending import append_batch
from holdfast.engine.sessions.gateway import Gateway, ended_error
from holdfast.ports.store import ItemQuery, SessionQuery

EXTEND_TRIES = 4
PAUSE_SECONDS = 0.1
SEARCHED_GENERATIONS = 8
"""How many generations are searched for a parked run."""


class LaneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The lane to acquire, and the run that needs it."""

    tenant: Tenant
    key: Key
    run_id: str | None = None
    """Identifies the run: an interrupted run of this id restarts, a completed one does not."""
    body: bytes = b""
    """The body that a repeat of the run must have too."""
    is_once: bool = False
    """Whether a second run of this id is rejected, even if the first did not complete."""
    is_own: bool = False
    """Whether the id is unique to this run; otherwise an equal run that was parked later is
    another."""
    resumes: tuple[str, ...] = ()
    """The calls that a parked run waits for; its existing items are moved to the head."""


class LaneEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run in a lane."""

    outcome: Outcome = "completed"
    code: str | None = None
    message: str | None = None
    result: str | None = None
    """The result that a repeat of the run gets."""


class CompletedRun(msgspec.Struct, frozen=True):
    """An earlier run of the same id, and its result."""

    turn_id: TurnId
    result: str | None


class InRetiredGeneration(msgspec.Struct, frozen=True):
    """A parked run of a retired generation; it continues there."""

    session_id: SessionId
    turn_id: TurnId
    ordinal: int


class ExternalLane:
    """One lane, from its request to its release."""

    def __init__(self, gateway: Gateway, request: LaneRequest) -> None:
        self._gateway = gateway
        self._request = request
        self._held: ActiveRun | None = None
        self._late_batches = 0
        self._adding = asyncio.Lock()
        self._batches: dict[str, Batch] = {}
        """The batches that this attempt has added."""
        self.elsewhere: InRetiredGeneration | None = None

    @property
    def run(self) -> ActiveRun:
        """The run that holds the lane."""
        assert self._held is not None, "acquire the lane first"
        return self._held

    # ── acquiring ───────────────────────────────────────────────────────────────────────────

    async def acquire(self) -> CompletedRun | None:
        """Wait for the lane. It is held afterwards, unless a completed run is returned."""
        gateway, accept = self._gateway, await self._accept()
        while True:
            admission = await gateway.accept(accept)
            if self._request.is_once and admission.turn.id != accept.turn_id:
                accept = await self._accept_again(admission, accept)
                continue
            if not isinstance(admission, Repeated):
                await self._enter(admission)
                return None
            done = await self._completed_run(admission)
            if done is not None:
                return done
            accept = replace(accept, run_id=RunId(gateway.ids.new("run")))

    async def _accept(self) -> Accept:
        gateway, request = self._gateway, self._request
        return Accept(
            tenant=request.tenant,
            turn_id=TurnId(gateway.ids.new("turn")),
            run_id=RunId(gateway.ids.new("run")),
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=request.key,
            idempotency_key=request.run_id,
            body_hash=_hash(request),
            limits=await gateway.storage.limits(request.tenant, gateway.limits),
        )

    async def _enter(self, admission: Started | Queued) -> None:
        run = self._held = await self._gateway.enter(admission)
        try:
            turn = run.turn
            if turn.first_seq is not None and turn.last_seq is not None:
                # Hide the items of an interrupted attempt: this one adds them again.
                await self._hide((turn.first_seq, turn.last_seq), "retry")
            if self._request.resumes:
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

    async def _accept_again(self, admission: Started | Queued | Repeated, accept: Accept) -> Accept:
        """Reject a second run, unless an equal run was parked since, which is a different one.

        A first run that was interrupted is ended as failed, so that it cannot restart.
        """
        if not isinstance(admission, Repeated):
            self._held = await self._gateway.enter(admission)
            message = "the run was interrupted, and its tools may have run"
            await self.end(LaneEnd(outcome="failed", code=RunStateUsed.code, message=message))
        if self._request.is_own or not await self._is_parked_after(admission.turn):
            raise RunStateUsed(
                f"this run was resumed before, as turn {admission.turn.id}; its tools may have run"
            )
        return replace(accept, idempotency_key=f"{self._request.run_id}:{admission.turn.id}")

    async def _completed_run(self, repeated: Repeated) -> CompletedRun | None:
        """Wait for the turn of this id; return its result, or None if it may run again."""
        gateway, turn, is_interrupted = self._gateway, repeated.turn, False
        if not repeated.is_settled:
            view = await gateway.wait_until_ended(turn.tenant, turn.id, step=repeated.step)
            turn, is_interrupted = view.turn, view.status == "interrupted"
        is_over = turn.outcome == "failed" and not turn.is_retryable
        if turn.outcome == "cancelled" or is_over:
            raise ended_error(turn)
        if is_interrupted or turn.outcome == "failed":
            return None
        runs = await gateway.read.runs(turn.id)
        result = runs[-1].result if runs else None
        return CompletedRun(turn.id, result.decode() if result is not None else None)

    # ── resuming a parked run ───────────────────────────────────────────────────────────────

    async def _resume(self) -> None:
        """Continue a parked run: at the head, or in its own generation."""
        parked = await self._parked()
        if parked is None:
            return
        session, block = parked
        if session.id == self.run.session.id:
            await self._move_to_head(block)
            return
        after = block[0].turn_number - 1
        turn = (await self._gateway.read.turns(session.id, after=after, limit=1))[0].turn
        self.elsewhere = InRetiredGeneration(session.id, turn.id, turn.step + 1)

    async def _parked(self) -> tuple[Session, list[StoredItem]] | None:
        """Return the latest run that waits for these calls: its session and its items."""
        for session in await self._generations():
            items = await self._gateway.read.items(session, ItemQuery())
            number = parked_turn(items, self._request.resumes)
            if number is not None:
                return session, [item for item in items if item.turn_number == number]
        return None

    async def _generations(self) -> list[Session]:
        query = SessionQuery(key=self._request.key, generations=True, limit=SEARCHED_GENERATIONS)
        views = await self._gateway.read.sessions(self._request.tenant, query)
        return sorted((view.session for view in views), key=lambda session: -session.generation)

    async def _is_parked_after(self, turn: Turn) -> bool:
        """Whether a run that waits for these calls was parked later than a turn."""
        parked = await self._parked() if self._request.resumes else None
        if parked is None:
            return False
        session, block = parked
        if session.id == turn.session_id:
            return block[0].turn_number > turn.number
        view = await self._gateway.read.session(turn.tenant, session_id=turn.session_id)
        # The turn ran under another key or was erased: the parked run is the same one.
        if view is None or view.session.key != self._request.key:
            return False
        return session.generation > view.session.generation

    async def _move_to_head(self, block: list[StoredItem]) -> None:
        """Move the run's existing items to the head, before more are added."""
        first, last = block[0].seq, block[-1].seq
        if last < self.run.session.head_seq:
            await self._hide((first, last), "move")
            await self.run.extend([item.as_new() for item in block])

    # ── adding ──────────────────────────────────────────────────────────────────────────────

    async def add(self, items: tuple[NewItem, ...], batch: Batch | None = None) -> None:
        """Append items to the turn; after a reset they go to the old generation.

        A batch is added once per attempt: one that an interrupted attempt added is added again.
        """
        async with self._adding:
            if batch is None:
                await self._add(items)
            else:
                await self._add_once(items, batch)

    async def _add_once(self, items: tuple[NewItem, ...], batch: Batch) -> None:
        if self.run.has_unsaved:
            await self._add(())
        stored_batch = self._batches.setdefault(batch.id, batch)
        if stored_batch.body_hash != batch.body_hash:
            raise IdempotencyMismatch(f"batch {batch.id!r} was used with other items")
        if stored_batch is not batch:
            return
        try:
            await self._add(items, batch)
        except IdempotencyMismatch:
            del self._batches[batch.id]
            raise

    async def _add(self, items: tuple[NewItem, ...], batch: Batch | None = None) -> None:
        new_items = items
        for tries_left in reversed(range(EXTEND_TRIES)):
            try:
                await self.run.extend(new_items, batch=batch)
            except RunFenced:
                await self._add_late(items, batch)
            except StoreUnavailable:
                if not tries_left:
                    raise
                new_items = ()  # the run includes them in its next write
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            return

    async def _add_late(self, items: tuple[NewItem, ...], batch: Batch | None) -> None:
        """Append after the lane was lost: to the old generation after a reset, otherwise raise."""
        gateway, turn, session = self._gateway, self.run.turn, self.run.session
        view = await gateway.read.session(turn.tenant, session_id=session.id)
        if view is None or view.session.is_live:
            raise RunFenced(f"run {self.run.fence.run_id} lost its lane: another worker took over")
        self._late_batches += 1
        await append_batch(
            gateway,
            AppendBatch(
                tenant=turn.tenant,
                turn_id=turn.id,
                ordinal=turn.step + self._late_batches,
                worker=gateway.worker.id,
                candidate_id=gateway.new_session_id(),
                session_id=session.id,
                items=items,
                idempotency_key=batch.id if batch is not None else None,
                body_hash=batch.body_hash if batch is not None else None,
            ),
        )

    # ── releasing ───────────────────────────────────────────────────────────────────────────

    async def end(self, end: LaneEnd) -> None:
        """End the run. A cancelled caller still waits until the end is committed."""
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
            is_retryable=end.outcome != "completed" and not self._request.is_once,
        )
        try:
            await run.finish_shielded(command)
        except RunFenced:
            # Reset or taken over at the last moment: the items are already committed.
            return

    def leave(self) -> None:
        """Release the lane; a run that was not ended is ended as interrupted."""
        run, self._held = self._held, None
        if run is not None:
            self._gateway.leave(run)


def _hash(request: LaneRequest) -> bytes:
    """Return the hash that a repeat must have in common with the first request: key and body.

    A parked run is the same run under any key, so its hash has only the body.
    """
    if request.is_once:
        return request.body
    return hashlib.blake2b(request.key.encode() + b"\0" + request.body, digest_size=16).digest()


def parked_turn(items: Sequence[StoredItem], call_ids: Collection[str]) -> int | None:
    """Return the number of the latest turn with calls of these ids that have no output."""
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
