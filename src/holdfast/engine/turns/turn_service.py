"""Accepts requests as turns and executes them, independently of their clients' connections.

A run belongs to the server, not to the connection: its events are kept for readers that reconnect,
and its end is committed whether or not anybody waits for it. A turn has a task of its own, unless
its caller waits for the answer in a task that ends only with the server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    LaneTimeout,
    ProviderFailure,
    StoreUnavailable,
    TurnCancelled,
    TurnInterrupted,
    release_frames,
)
from holdfast.core.ids import RunId, Tenant, TurnId
from holdfast.core.model.request import TurnRequest, read_request, response_id
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.response import (
    ResponseFacts,
    cut_off_end,
    decode_answer,
    deleted_end,
)
from holdfast.core.transaction.commands import Accept, Queued, Repeated, Started
from holdfast.engine.logging import log
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway, ended_error
from holdfast.engine.streaming.live_response import LiveResponse, LiveResponses
from holdfast.engine.streaming.response_records import ResponseRecords, conversation_of
from holdfast.engine.streaming.resume import resume_live
from holdfast.engine.streaming.stream_reader import MAX_RESUMES, StreamReader
from holdfast.engine.turns.executor import TurnExecutor, TurnResult
from holdfast.engine.turns.in_flight import Arrival, Meeting, RunsInFlight
from holdfast.ports.store import ResponseView


class Client(Protocol):
    """The connection of a caller."""

    async def wait_disconnected(self, *, or_half_closed: bool = False) -> None:
        """Return when the client has disconnected, or has shut down its sending side."""
        ...


class TurnTicket(msgspec.Struct, eq=False):
    """An accepted request: its turn, its events and its result."""

    _service: "TurnService"
    turn: Turn
    session: Session
    step: int
    unstarted: tuple[Started | Queued, TurnRequest] | None = None
    """A turn that has no task yet: `answer` or `start` must be called before any await."""
    task: asyncio.Task[None] | None = None
    """The task that executes the turn; None if this request repeats an earlier one."""
    outcome: TurnResult | Exception | None = None
    """The result or the error, once it is known."""
    resume: Callable[[], Awaitable[object]] | None = None
    """Resumes the turn of an earlier request if it loses its worker."""
    _waiters: list[asyncio.Future[TurnResult]] = []

    def start(self) -> None:
        """Execute a deferred turn in its own task."""
        if self.unstarted is not None:
            (admission, request), self.unstarted = self.unstarted, None
            self._service.start_task(self, admission, request, None)

    @property
    def response_id(self) -> str:
        """The id of the response to this request."""
        return response_id(self.turn.id, self.step)

    def reader(self, after: int = -1) -> StreamReader:
        """Return a reader of the response's events."""
        name = response_id(self.turn.id, self.step)
        reader = self._service.reader(self.turn.tenant, name, after)
        reader.resume = self.resume
        return reader

    def answer(self, client: Client | None = None) -> Awaitable[TurnResult]:
        """Return an awaitable for the committed result; it raises the error if there is none.

        A deferred turn is executed by the caller's own task. Otherwise the turn has a task of its
        own, and cancelling the caller does not stop it; with a `client`, the turn is cancelled if
        that leaves.
        """
        if self.unstarted is not None:
            (admission, request), self.unstarted = self.unstarted, None
            return self._service.execute(self, admission, request, None)
        return self._result() if client is None else self._result_or_abandon(client)

    def _result(self) -> "asyncio.Future[TurnResult]":
        waiter: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self.outcome is not None:
            self.settle(self.outcome)
        else:
            assert self.task is not None
        return waiter

    def settle(self, outcome: TurnResult | Exception) -> None:
        """Pass the result or the error to everybody who waits for it."""
        self.outcome = outcome
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if isinstance(outcome, Exception):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)

    async def _result_or_abandon(self, client: Client) -> TurnResult:
        answer = self._result()
        disconnect = asyncio.ensure_future(client.wait_disconnected(or_half_closed=True))
        try:
            first: set[asyncio.Future[Any]] = {answer, disconnect}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await self.abandon()
            return await answer
        finally:
            disconnect.cancel()
            await asyncio.gather(disconnect, return_exceptions=True)

    async def abandon(self) -> None:
        """Cancel the turn because its client has disconnected."""
        await self._service.cancel(self.turn, code="client_left")


class TurnService:
    """The entry point of all APIs for turns that a model answers."""

    def __init__(self, gateway: Gateway, executor: TurnExecutor) -> None:
        self._gateway = gateway
        self._executor = executor
        self.check = executor.check
        """Raise for a request that `accept` would reject in any session."""
        self._tasks: dict[asyncio.Task[Any], TurnTicket] = {}
        self._queued: set[asyncio.Task[Any]] = set()
        """Tasks that wait for their lanes; they are cancelled as soon as the server stops."""
        self._lives = LiveResponses()
        self.live = self._lives.get
        """Return the events of a response that this process has in memory, by its id."""
        self.in_flight = RunsInFlight(gateway, self._lives)
        self._stopping_since: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that was running at the start; looking up the running one is a system call."""
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        self.records = ResponseRecords(gateway.read)

    async def accept(
        self, accept: Accept, request: TurnRequest, *, is_live: bool, is_deferred: bool = False
    ) -> TurnTicket:
        """Make a request durable and start its execution; return once it is accepted.

        With `is_deferred`, the caller executes the turn; see `TurnTicket.unstarted`.
        """
        await self._executor.check(accept.tenant, request, accept.items, accept.source)
        if accept.on_busy == "interrupt" and (accept.key or accept.session_id):
            async with self.in_flight.held(accept) as command:
                admission = await self._gateway.accept(command)
        else:
            admission = await self._gateway.accept(accept)
        if isinstance(admission, Repeated):
            return await self._attach(accept, admission, request)
        if not is_deferred:
            return self._start(admission, request, is_live=is_live)
        turn = admission.turn
        return TurnTicket(self, turn, admission.session, turn.step, (admission, request))

    async def meet(self, arrival: Arrival, request: TurnRequest, session: Session) -> Meeting:
        """Decide about a request that finds a run in its session, if it can be expressed."""
        await self._executor.check(arrival.tenant, request, ())
        return await self.in_flight.meet(arrival, session)

    def _start(
        self, admission: Started | Queued, request: TurnRequest, *, is_live: bool
    ) -> TurnTicket:
        """Start the execution of an accepted turn."""
        live = None
        if is_live:
            live = LiveResponse(_initial_facts(admission.turn, admission.session, request))
            self._lives.add(live)
        ticket = TurnTicket(self, admission.turn, admission.session, admission.turn.step)
        # There is no await between the commit and this, so every turn gets its task. What could
        # fail comes after it: a turn without a task would hold its lane until the process ends.
        self.start_task(ticket, admission, request, live)
        if live is not None:
            live.open("queued" if isinstance(admission, Queued) else "in_progress")
        return ticket

    def start_task(
        self,
        ticket: TurnTicket,
        admission: Started | Queued,
        request: TurnRequest,
        live: LiveResponse | None,
    ) -> None:
        """Execute an accepted turn in its own task."""
        task = ticket.task = asyncio.get_running_loop().create_task(
            self._execute_and_settle(ticket, admission, request, live), name="holdfast-turn"
        )
        self._tasks[task] = ticket

    async def _execute_and_settle(
        self,
        ticket: TurnTicket,
        admission: Started | Queued,
        request: TurnRequest,
        live: LiveResponse | None,
    ) -> None:
        """Execute a turn; pass the result to everybody who waits for it."""
        outcome: TurnResult | Exception | None = None
        try:
            outcome = await self.execute(ticket, admission, request, live)
        except Exception as exc:  # noqa: BLE001 - the top of a task; its caller gets the error
            release_frames(exc)
            outcome = exc
        finally:
            ticket.settle(_stopped() if outcome is None else outcome)

    def reader(self, tenant: Tenant, name: str, after: int = -1) -> StreamReader:
        """Return a reader of a response's events, including those to come."""
        return StreamReader(self.records, self._lives, tenant, name, after)

    async def execute(
        self,
        ticket: TurnTicket,
        admission: Started | Queued,
        request: TurnRequest,
        live: LiveResponse | None,
    ) -> TurnResult:
        """Wait for the lane and execute the turn in the current task; stop if the lane is lost."""
        task = ticket.task or asyncio.current_task(self._loop) or asyncio.current_task()
        assert task is not None
        run: ActiveRun | None = None
        self._tasks[task] = ticket
        try:
            try:
                run = (
                    self._gateway.begin(admission, task.cancel)
                    if isinstance(admission, Started)
                    else await self._wait_for_lane(admission, task)
                )
                self.in_flight.runs[run.session.id] = run
                return await self._executor.execute(run, request, live)
            except TurnInterrupted as exc:
                joined = await self._joined_result(ticket, exc)
                self._count_left(run, None)
                if live is not None:
                    live.end_whole(joined.response)
                return joined
            finally:
                if run is not None:
                    if run.ended is None:
                        self._gateway.leave(run)
                    if self.in_flight.runs.get(run.session.id) is run:
                        del self.in_flight.runs[run.session.id]
                if live is not None:
                    await self._close_live(live, admission.turn, run)
        except asyncio.CancelledError as exc:
            self._count_left(run, exc)
            if ticket.task is not None or self._stopping_since is None:
                raise
            # The shutdown cancelled the turn, not the request: its client gets an answer.
            task.uncancel()
            raise _stopped() from None
        except Exception as exc:
            self._count_left(run, exc)
            is_expected = isinstance(exc, HoldfastError)
            note = log.info if is_expected else log.exception
            note("turn.not_answered", turn_id=ticket.turn.id, reason=type(exc).__name__)
            raise
        finally:
            del self._tasks[task]

    async def _wait_for_lane(self, admission: Queued, task: "asyncio.Task[Any]") -> ActiveRun:
        self._queued.add(task)
        try:
            return await self._gateway.enter(admission, task.cancel)
        finally:
            self._queued.discard(task)

    def _count_left(self, run: ActiveRun | None, error: BaseException | None) -> None:
        """Count a turn that this process leaves without having committed its end."""
        if run is not None and run.ended is not None:
            return
        outcome = "merged" if error is None else "interrupted"
        if isinstance(error, TurnCancelled):
            outcome = "cancelled"
        elif isinstance(error, LaneTimeout):
            outcome = "failed"
        self._gateway.meter.turn_left(outcome, has_run=run is not None)

    async def _joined_result(self, ticket: TurnTicket, exc: TurnInterrupted) -> TurnResult:
        """Return the answer of the turn that this one joined; raise `exc` if it joined none."""
        tenant = ticket.turn.tenant
        view = await self._gateway.read.turn(tenant, ticket.turn.id)
        if view is None or view.turn.merged_into is None:
            raise exc
        turn = await self._wait_for_answer(view.turn, ticket.step)
        return await self.load_result(tenant, turn, ticket.step)

    async def _wait_for_answer(self, turn: Turn, step: int) -> Turn:
        """Return a turn once it, and the turn that it joined, have ended or answered."""
        view = await self._gateway.wait_until_ended(turn.tenant, turn.id, step=step)
        if view.turn.merged_into is not None:
            await self._gateway.wait_until_ended(turn.tenant, view.turn.merged_into)
        return view.turn

    async def _close_live(
        self, live: LiveResponse, turn: Turn, run: ActiveRun | None = None
    ) -> None:
        """End a stream without a terminal event, with the recorded end."""
        if not live.is_ended and live.publish_after_commit:
            # Another attempt may extend the journal: readers continue from there.
            live.detach()
        elif not live.is_ended:
            facts = await self._recorded_end(live, turn, run) or cut_off_end(live.facts)
            if facts.output and live.first_output is None:
                live.end_whole(facts)
            else:
                live.end(facts)
        self._lives.retire(live)

    async def _recorded_end(
        self, live: LiveResponse, turn: Turn, run: ActiveRun | None
    ) -> ResponseFacts | None:
        """Return the recorded end of a response, or None if its stream cannot end with it.

        After output of one run, the answer of another one would be a different text.
        """
        try:
            view = await self.records.find(turn.tenant, live.id)
            if view is None:
                is_lost = await self._gateway.is_lost(turn)
                return None if is_lost else deleted_end(live.facts)
            is_other = view.run is None or run is None or view.run.id != run.fence.run_id
            if is_other and live.first_output is not None:
                return None
            facts = await self.records.facts(view)
        except StoreUnavailable:
            return None
        return facts if facts.status not in ("queued", "in_progress") else None

    # ── repeated requests and recovered turns ───────────────────────────────────────────────

    async def _attach(self, accept: Accept, repeated: Repeated, request: TurnRequest) -> TurnTicket:
        """Attach to a turn that was accepted before; a plain request waits for its result.

        If the turn loses its worker meanwhile, this request resumes it.
        """
        turn, step = repeated.turn, repeated.step
        ticket = TurnTicket(self, turn, repeated.session, step)
        if request.is_background:
            return ticket
        if request.is_stream:
            ticket.resume = partial(self._try_resume, accept, request, turn, step)
            return ticket
        is_settled = repeated.is_settled and turn.merged_into is None
        for _ in range(MAX_RESUMES):
            try:
                if not is_settled:
                    turn = ticket.turn = await self._wait_for_answer(turn, step)
                ticket.outcome = await self.load_result(accept.tenant, turn, step)
                break
            except TurnInterrupted as exc:
                ticket.outcome = exc
                if is_settled:
                    break
            except HoldfastError as exc:
                ticket.outcome = exc
                break
            resumed = await self._resume(accept, request, turn, step)
            if isinstance(resumed, Repeated):
                is_settled = resumed.is_settled
            elif resumed.turn.id == turn.id:
                return resumed
        return ticket

    async def _try_resume(
        self, accept: Accept, request: TurnRequest, turn: Turn, step: int
    ) -> None:
        """Resume a turn for a reader of its stream; on failure the reader gets the recorded end."""
        try:
            await self._resume(accept, request, turn, step)
        except HoldfastError as exc:
            log.info("turn.not_resumed", turn_id=turn.id, code=exc.code)

    async def _resume(
        self, accept: Accept, request: TurnRequest, turn: Turn, step: int
    ) -> TurnTicket | Repeated:
        """Resume a turn that lost its worker, or find the request that has resumed it.

        Of a turn that joined another one, that other turn is resumed.
        """
        turn = await self._read_turn(turn, turn.id)
        if turn.merged_into is not None:
            turn = await self._read_turn(turn, turn.merged_into)
            step, request = turn.step, read_request(turn.request)
            accept = replace(accept, idempotency_key=None)
        # The SDK's retry count was claimed when the request arrived: name the turn instead.
        accept = replace(
            accept, key=None, session_id=turn.session_id, same_as=(turn.id, step), parent=None,
            retry_count=0, expected_id=None, after_turn=None, seen_seq=None,
            run_id=RunId(self._gateway.ids.new("run")),  # one request may resume it several times
        )  # fmt: skip
        admission = await self._gateway.accept(accept)
        if isinstance(admission, Repeated):
            return admission
        return self._start(admission, request, is_live=request.is_stream)

    async def _read_turn(self, turn: Turn, name: TurnId) -> Turn:
        """Return a turn, or the one of this name that it joined, as it is now."""
        view = await self._gateway.read.turn(turn.tenant, name)
        if view is None:
            raise await self._gateway.why_gone(turn)
        return view.turn

    async def load_result(self, tenant: Tenant, turn: Turn, step: int) -> TurnResult:
        """Return the recorded result of a step, or raise its error."""
        if turn.merged_into is not None:
            joined = await self._read_turn(turn, turn.merged_into)
            result = await self.load_result(tenant, joined, joined.step)
            named = replace(result.response, id=response_id(turn.id, step))
            return TurnResult(turn, result.session, named)
        runs = [run for run in await self._gateway.read.runs(turn.id) if run.step == step]
        done = next((run for run in reversed(runs) if run.outcome == "completed"), None)
        if done is None:
            raise _unanswered(turn, runs[-1] if runs else None, self._gateway.clock.now())
        view = await self._gateway.read.session(tenant, session_id=turn.session_id)
        facts = await self.facts_of(turn, done, view.session) if view is not None else None
        if facts is None or view is None:
            raise await self._gateway.why_gone(turn)
        return TurnResult(turn, view.session, facts)

    async def facts_of(self, turn: Turn, run: Run, session: Session) -> ResponseFacts | None:
        """Return the recorded response of a run; None if the session was erased meanwhile."""
        status = turn.outcome or "running"
        return await self.records.kept_facts(ResponseView(turn, status, session, run, run.step))

    async def run_recovered(self, run: ActiveRun) -> None:
        """Execute a turn that a crash left; this is the handler of the gateway."""
        request = read_request(run.turn.request)
        live = None
        if request.is_background and request.is_stored:
            facts = _initial_facts(run.turn, run.session, request)
            view = await self.records.find(run.turn.tenant, facts.id)
            live = await resume_live(self.records, view, facts)
            self._lives.add(live)
        task = asyncio.current_task()
        assert task is not None
        run.on_lost(task.cancel)
        self.in_flight.runs[run.session.id] = run
        try:
            await self._executor.execute(run, request, live)
        except BaseException as exc:
            self._count_left(run, exc)
            raise
        finally:
            self.in_flight.runs.pop(run.session.id, None)
            if live is not None:
                await self._close_live(live, run.turn)

    # ── cancelling and stopping ─────────────────────────────────────────────────────────────

    async def cancel(self, turn: Turn, *, code: str = "turn_cancelled") -> Turn:
        """Cancel an open turn, in whichever process it runs; an ended turn is not changed."""
        return await self.in_flight.end(turn, code=code)

    def begin_stop(self) -> None:
        """Start no more runs: queued turns stay durable, readers of remote streams disconnect."""
        if self._stopping_since is None:
            self._stopping_since = asyncio.get_running_loop().time()
        self._lives.is_closing = True
        for task in self._queued:
            task.cancel()

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for a grace period; the others stay durable for the next worker.

        Requests that were read before the stop may still become turns, with the same deadline.
        """
        self.begin_stop()
        assert self._stopping_since is not None
        loop = asyncio.get_running_loop()
        ends_at = self._stopping_since + grace_seconds
        while self._tasks and (seconds := ends_at - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=seconds)
        self._gateway.hand_back()
        # Turns that are accepted meanwhile are cancelled in the next iteration.
        while self._tasks:
            for task, ticket in self._tasks.items():
                log.warning("turn.cut_off", turn_id=ticket.turn.id, session_id=ticket.session.id)
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._settle_unbegun()

    async def _settle_unbegun(self) -> None:
        """Settle the turns whose tasks were cancelled before their first step."""
        for task in [task for task in self._tasks if task.done()]:
            ticket = self._tasks.pop(task)
            live = self._lives.get(ticket.response_id)
            if live is not None:
                await self._close_live(live, ticket.turn)
            ticket.settle(_stopped())


def _stopped() -> HoldfastError:
    return TurnInterrupted("the server is stopping; send the request again")


def _initial_facts(turn: Turn, session: Session, request: TurnRequest) -> ResponseFacts:
    return ResponseFacts(
        id=response_id(turn.id, turn.step),
        request=request,
        created_at=turn.accepted_at,
        status="in_progress",
        conversation_id=conversation_of(session, request) if request.is_conversation else None,
    )


def _unanswered(turn: Turn, run: Run | None, now: float) -> HoldfastError:
    """Return the error that the first caller of a turn got."""
    error = ended_error(turn)
    recorded = decode_answer(run.result).failure if run is not None and run.result else None
    if turn.outcome != "failed" or recorded is None:
        return error
    if not recorded.is_providers:
        error.param = recorded.param
        return error
    return ProviderFailure(
        error.message,
        failure_class="terminal",
        status=recorded.status,
        provider_code=turn.error_code,
        provider_type=recorded.provider_type,
        param=recorded.param,
        # The rest of the time that the provider asked to wait.
        retry_after=max(recorded.retry_at - now, 0.0) if recorded.retry_at is not None else None,
    )
