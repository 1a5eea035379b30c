"""The desk: takes requests in as turns and carries them out, whoever stays on the line.

A run belongs to the server, not to the socket: each turn is a task of its own, its events are
kept for readers who come back, and its end is recorded whether anybody listens or not.
"""

import asyncio

from holdfast.core.commands import Accept, Cancel, Queued, Repeated, Started
from holdfast.core.errors import (
    HoldfastError,
    ProviderFailure,
    SessionDeleted,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    TurnInterrupted,
)
from holdfast.core.ids import Tenant
from holdfast.core.request import TurnRequest, read_request, response_id
from holdfast.core.response import ResponseFacts, decode_answer, error_value
from holdfast.core.session import Session
from holdfast.core.turn import Run, Turn
from holdfast.engine.gateway import Gateway
from holdfast.engine.live import LiveResponse, Lives
from holdfast.engine.log import log
from holdfast.engine.recorded import Recorded, conversation_of
from holdfast.engine.responder import Answered, Responder
from holdfast.engine.resumption import resume_live
from holdfast.engine.stream_reader import StreamReader
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.store import ResponseView


class Ticket:
    """A request that was taken in: its turn, its events, its one answer."""

    def __init__(self, desk: "Desk", turn: Turn, session: Session, step: int) -> None:
        self._desk = desk
        self.turn = turn
        self.session = session
        self.step = step
        self.task: asyncio.Task[None] | None = None
        """What carries the turn out, if that is done for this request."""
        self.outcome: Answered | Exception | None = None
        """The answer, or why there is none, as soon as that is known."""
        self._waiters: list[asyncio.Future[None]] = []
        self.is_rolled_over = False

    @property
    def response_id(self) -> str:
        """The id of the response that this request gives."""
        return response_id(self.turn.id, self.step)

    def reader(self, after: int = -1) -> StreamReader:
        """Return a reader of the response's events."""
        return self._desk.reader(self.turn.tenant, self.response_id, after)

    async def answer(self) -> Answered:
        """Return the committed answer, or raise why there is none. Leaving stops nothing."""
        while self.outcome is None:
            assert self.task is not None
            waiter: asyncio.Future[None] = self._desk.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def settle(self, outcome: Answered | Exception) -> None:
        """Give the answer, or why there is none, to everybody who waits for it."""
        self.outcome = outcome
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def abandon(self) -> None:
        """Cancel the turn because its client has left, where that is the policy."""
        await self._desk.cancel(self.turn, code="client_left")


class Desk:
    """Where every API hands its turns in."""

    def __init__(self, gateway: Gateway, responder: Responder) -> None:
        self._gateway = gateway
        self._responder = responder
        self.loop: asyncio.AbstractEventLoop
        """Where the turns are carried out."""
        self._tasks: dict[asyncio.Task[None], Ticket] = {}
        self._queued: set[asyncio.Task[None]] = set()
        self._lives = Lives()
        self._stopping_since: float | None = None
        self.recorded = Recorded(gateway.read)

    async def take(self, accept: Accept, request: TurnRequest, *, is_live: bool) -> Ticket:
        """Make the request durable and set it going; answer once it is accepted."""
        self._responder.check(request, accept.items)
        admission = await self._gateway.accept(accept)
        if isinstance(admission, Repeated):
            return await self._attach(accept.tenant, admission, request)
        live = self._go_live(admission, request) if is_live else None
        ticket = Ticket(self, admission.turn, admission.session, admission.turn.step)
        ticket.is_rolled_over = admission.is_rolled_over
        self.loop = loop = asyncio.get_running_loop()
        carried = self._carry(ticket, admission, request, live)
        task = ticket.task = loop.create_task(carried, name="holdfast-turn")
        self._tasks[task] = ticket
        return ticket

    def live(self, name: str) -> LiveResponse | None:
        """Return the stream of a response that this process has in memory."""
        return self._lives.get(name)

    def reader(self, tenant: Tenant, name: str, after: int = -1) -> StreamReader:
        """Return a reader of a response's events, those to come included."""
        return StreamReader(self.recorded, self._lives, tenant, name, after)

    def _go_live(self, admission: Started | Queued, request: TurnRequest) -> LiveResponse:
        is_queued = isinstance(admission, Queued)
        live = LiveResponse(_begun(admission.turn, admission.session, request))
        self._lives.add(live)
        live.open("queued" if is_queued else "in_progress")
        return live

    async def _carry(
        self,
        ticket: Ticket,
        admission: Started | Queued,
        request: TurnRequest,
        live: LiveResponse | None,
    ) -> None:
        """Get the lane, then carry the turn out; it stops as soon as the lane is taken away."""
        task, run = ticket.task, None
        assert task is not None
        outcome: Answered | Exception | None = None
        try:
            try:
                if isinstance(admission, Started):
                    run = self._gateway.begin(admission)
                else:
                    run = await self._enter(task, admission)
                run.on_lost(task.cancel)
                outcome = await self._responder.respond(run, request, live)
            finally:
                if run is not None:
                    self._gateway.leave(run)
                if live is not None:
                    await self._close(live, admission.turn)
        except Exception as exc:  # noqa: BLE001 - the top of a task; whoever waits is told
            log.info("turn.not_answered", reason=type(exc).__name__)
            outcome = exc
        finally:
            del self._tasks[task]
            ticket.settle(_stopped() if outcome is None else outcome)

    async def _enter(self, task: asyncio.Task[None], admission: Queued) -> ActiveRun:
        """Return the run of a turn that has to wait for it, and may be stopped meanwhile."""
        self._queued.add(task)
        try:
            return await self._gateway.enter(admission)
        finally:
            self._queued.discard(task)

    async def _close(self, live: LiveResponse, turn: Turn) -> None:
        """Give a stream that has no end yet the one that is recorded."""
        if not live.is_ended and live.is_shown_when_kept:
            # Another attempt may go on where the journal ends: from here on it tells the rest.
            live.cut()
        elif not live.is_ended:
            live.end(await self._recorded_end(live, turn) or _unknown_end(live.facts))
        self._lives.settle(live)

    async def _recorded_end(self, live: LiveResponse, turn: Turn) -> ResponseFacts | None:
        try:
            view = await self.recorded.find(turn.tenant, live.id)
            facts = await self.recorded.facts(view) if view is not None else None
        except StoreUnavailable:
            return None
        if facts is None or facts.status in ("queued", "in_progress"):
            return None
        return facts

    async def _attach(self, tenant: Tenant, repeated: Repeated, request: TurnRequest) -> Ticket:
        """Stand by a turn that was taken in before; a plain request waits for its one answer."""
        turn = repeated.turn
        ticket = Ticket(self, turn, repeated.session, repeated.step)
        if request.is_stream or request.is_background:
            return ticket
        try:
            if not repeated.is_settled:
                view = await self._gateway.wait_until_ended(tenant, turn.id, step=repeated.step)
                turn = ticket.turn = view.turn
            ticket.outcome = await self.recall(tenant, turn, repeated.step)
        except HoldfastError as exc:
            ticket.outcome = exc
        return ticket

    async def recall(self, tenant: Tenant, turn: Turn, step: int) -> Answered:
        """Return the recorded answer of a step, or raise what became of it."""
        runs = [run for run in await self._gateway.read.runs(turn.id) if run.step == step]
        done = next((run for run in reversed(runs) if run.outcome == "completed"), None)
        if done is None:
            raise _not_answered(turn, runs[-1] if runs else None, self._gateway.clock.now())
        view = await self._gateway.read.session(tenant, session_id=turn.session_id)
        if view is None:
            raise SessionDeleted("the session of this turn was deleted")
        return Answered(turn, view.session, await self.facts_of(turn, done, view.session))

    async def facts_of(self, turn: Turn, run: Run, session: Session) -> ResponseFacts:
        """Return what is recorded of a run's response."""
        status = turn.outcome or "running"
        return await self.recorded.facts(ResponseView(turn, status, session, run, run.step))

    async def cancel(self, turn: Turn, *, code: str = "turn_cancelled") -> Turn:
        """End a turn that has not ended, wherever it runs; one that has stays as it is."""
        return await self._gateway.submit(
            Cancel(tenant=turn.tenant, turn_id=turn.id, reason="cancelled on request", code=code)
        )

    async def carry_adopted(self, run: ActiveRun) -> None:
        """Carry out a turn that a crash left behind: the gateway's handler."""
        request = read_request(run.turn.request)
        live = None
        if request.is_background and request.is_stored:
            begun = _begun(run.turn, run.session, request)
            view = await self.recorded.find(run.turn.tenant, begun.id)
            live = await resume_live(self.recorded, view, begun)
            self._lives.add(live)
        task = asyncio.current_task()
        assert task is not None
        run.on_lost(task.cancel)
        try:
            await self._responder.respond(run, request, live)
        finally:
            if live is not None:
                await self._close(live, run.turn)

    def begin_stop(self) -> None:
        """Begin nothing more: turns that wait stay durable, readers of others' streams go."""
        if self._stopping_since is None:
            self._stopping_since = asyncio.get_running_loop().time()
        self._lives.is_closing = True
        for task in self._queued:
            task.cancel()

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for a while; the rest stay durable for whoever comes next."""
        self.begin_stop()
        assert self._stopping_since is not None
        gone = asyncio.get_running_loop().time() - self._stopping_since
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(grace_seconds - gone, 0.0))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # A task that was cancelled before its first step has answered nobody.
        while self._tasks:
            _, ticket = self._tasks.popitem()
            live = self._lives.get(ticket.response_id)
            if live is not None:
                await self._close(live, ticket.turn)
            ticket.settle(_stopped())


def _stopped() -> HoldfastError:
    return TurnInterrupted("the server was asked to stop; send it again")


def _begun(turn: Turn, session: Session, request: TurnRequest) -> ResponseFacts:
    return ResponseFacts(
        id=response_id(turn.id, turn.step),
        request=request,
        created_at=turn.accepted_at,
        status="in_progress",
        conversation_id=conversation_of(session, request),
    )


def _unknown_end(begun: ResponseFacts) -> ResponseFacts:
    """Return the end of a response whose record is gone or out of reach."""
    return ResponseFacts(
        id=begun.id,
        request=begun.request,
        created_at=begun.created_at,
        status="failed",
        conversation_id=begun.conversation_id,
        error=error_value("server_error", "the end of this response could not be recorded"),
    )


def _not_answered(turn: Turn, run: Run | None, now: float) -> HoldfastError:
    """Return what became of a turn, in the words in which its first caller was told."""
    if turn.outcome == "cancelled":
        return TurnCancelled(turn.id, turn.error_code)
    if turn.outcome == "failed":
        return _failed(turn, run, now)
    return TurnInterrupted(f"turn {turn.id} was interrupted; send it again")


def _failed(turn: Turn, run: Run | None, now: float) -> HoldfastError:
    message, code = turn.error_message or "the turn failed", turn.error_code
    kept = decode_answer(run.result).failure if run is not None and run.result else None
    if kept is None:
        return TurnFailed(message, failure_code=code or TurnFailed.code)
    if not kept.is_providers:
        return TurnFailed(message, failure_code=code or TurnFailed.code, param=kept.param)
    return ProviderFailure(
        message,
        failure_class="terminal",
        status=kept.status,
        provider_code=code,
        provider_type=kept.provider_type,
        param=kept.param,
        # What is left of the time that the provider asked for.
        retry_after=max(kept.retry_at - now, 0.0) if kept.retry_at is not None else None,
    )
