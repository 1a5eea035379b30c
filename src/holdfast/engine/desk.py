"""The desk: takes requests in as turns and carries them out, whoever stays on the line.

A run belongs to the server, not to the socket: each turn is a task of its own, its events are
kept for readers who come back, and its end is recorded whether anybody listens or not.
"""

import asyncio
from collections import OrderedDict

from holdfast.core.commands import Accept, Queued, Repeated, Started
from holdfast.core.errors import (
    HoldfastError,
    SessionDeleted,
    TurnCancelled,
    TurnFailed,
    TurnInterrupted,
)
from holdfast.core.ids import Tenant
from holdfast.core.request import TurnRequest, read_request, response_id
from holdfast.core.response import OUTCOME_STATUS, ResponseFacts, decode_answer, response_value
from holdfast.core.session import Session
from holdfast.core.turn import Run, Turn
from holdfast.engine.gateway import Gateway
from holdfast.engine.live import LiveResponse
from holdfast.engine.log import log
from holdfast.engine.responder import Answered, Responder, conversation_id
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.store import ItemQuery

KEPT_LIVES = 256
"""Ended streams kept in memory for readers who come back."""


class Ticket:
    """A request that was taken in: its turn, its events, its one answer."""

    def __init__(self, turn: Turn, session: Session, step: int, live: LiveResponse | None) -> None:
        self.turn = turn
        self.session = session
        self.step = step
        self.live = live
        self.task: asyncio.Task[Answered] | None = None
        self.recorded: Answered | None = None
        self.is_rolled_over = False

    @property
    def response_id(self) -> str:
        """The id of the response that this request gives."""
        return response_id(self.turn.id, self.step)

    async def answer(self) -> Answered:
        """Return the committed answer, or raise why there is none. Leaving stops nothing."""
        if self.recorded is not None:
            return self.recorded
        assert self.task is not None
        return await asyncio.shield(self.task)


class Desk:
    """Where every API hands its turns in."""

    def __init__(self, gateway: Gateway, responder: Responder) -> None:
        self._gateway = gateway
        self._responder = responder
        self._tasks: set[asyncio.Task[Answered]] = set()
        self._lives: OrderedDict[str, LiveResponse] = OrderedDict()

    async def take(self, accept: Accept, request: TurnRequest, *, is_live: bool) -> Ticket:
        """Make the request durable and set it going; answer once it is accepted."""
        admission = await self._gateway.accept(accept)
        if isinstance(admission, Repeated):
            return await self._attach(accept.tenant, admission)
        live = self._go_live(admission, request) if is_live else None
        ticket = Ticket(admission.turn, admission.session, admission.turn.step, live)
        ticket.is_rolled_over = admission.is_rolled_over
        task = asyncio.create_task(self._carry(admission, request, live), name="holdfast-turn")
        ticket.task = task
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return ticket

    def _forget(self, task: asyncio.Task[Answered]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("turn.not_answered", reason=type(task.exception()).__name__)

    def live(self, name: str) -> LiveResponse | None:
        """Return a response's events, if this process has them."""
        return self._lives.get(name)

    def _go_live(self, admission: Started | Queued, request: TurnRequest) -> LiveResponse:
        live = LiveResponse(response_id(admission.turn.id, admission.turn.step))
        self._lives[live.id] = live
        while len(self._lives) > KEPT_LIVES:
            self._lives.popitem(last=False)
        is_queued = isinstance(admission, Queued)
        facts = ResponseFacts(
            id=live.id,
            request=request,
            created_at=admission.turn.accepted_at,
            status="queued" if is_queued else "in_progress",
            conversation_id=(
                conversation_id(admission.session.id) if request.is_conversation else None
            ),
        )
        live.publish("response.created", {"response": response_value(facts)})
        if is_queued:
            live.publish("response.queued", {"response": response_value(facts)})
        return live

    async def _carry(
        self, admission: Started | Queued, request: TurnRequest, live: LiveResponse | None
    ) -> Answered:
        """Get the lane, ask the model, commit the answer."""
        run: ActiveRun | None = None
        task: asyncio.Task[Answered] | None = asyncio.current_task()
        assert task is not None
        try:
            run = await self._gateway.enter(admission)
            run.on_lost(lambda: _stop(task))
            return await self._responder.respond(run, request, live)
        except asyncio.CancelledError:
            if run is None or not run.is_lost:
                raise
            task.uncancel()
            raise await self._why_lost(run.turn) from None
        except HoldfastError as exc:
            if run is not None and run.is_lost:
                raise await self._why_lost(run.turn) from exc
            raise
        finally:
            if run is not None:
                self._gateway.leave(run)
            if live is not None and not live.is_ended:
                self._end_without_answer(admission.turn, request, live)

    def _end_without_answer(self, turn: Turn, request: TurnRequest, live: LiveResponse) -> None:
        """Give a stream whose turn was taken away its terminal event all the same."""
        facts = ResponseFacts(
            id=live.id, request=request, created_at=turn.accepted_at, status="cancelled"
        )
        value = response_value(facts)
        value["incomplete_details"] = {"reason": "cancelled"}
        live.publish("response.incomplete", {"response": value})
        live.end()

    async def _why_lost(self, turn: Turn) -> HoldfastError:
        view = await self._gateway.read.turn(turn.tenant, turn.id)
        if view is None:
            return SessionDeleted("the session of this turn was deleted")
        if view.turn.outcome == "cancelled":
            return TurnCancelled(turn.id, view.turn.error_code)
        return TurnInterrupted(f"turn {turn.id} was taken over by another worker; send it again")

    async def _attach(self, tenant: Tenant, repeated: Repeated) -> Ticket:
        """Stand by a turn that was taken in before: wait for its end, replay its answer."""
        turn, run = repeated.turn, repeated.run
        if run is None or run.outcome is None:
            view = await self._gateway.wait_until_ended(tenant, turn.id, step=repeated.step)
            turn = view.turn
        ticket = Ticket(
            turn,
            repeated.session,
            repeated.step,
            self._lives.get(response_id(turn.id, repeated.step)),
        )
        ticket.recorded = await self.recall(tenant, turn, repeated.step)
        return ticket

    async def recall(self, tenant: Tenant, turn: Turn, step: int) -> Answered:
        """Return the recorded answer of a step, or raise what became of it."""
        runs = [run for run in await self._gateway.read.runs(turn.id) if run.step == step]
        done = next((run for run in reversed(runs) if run.outcome == "completed"), None)
        if done is None:
            raise _not_answered(turn)
        view = await self._gateway.read.session(tenant, session_id=turn.session_id)
        if view is None:
            raise SessionDeleted("the session of this turn was deleted")
        return Answered(turn, view.session, await self.facts_of(turn, done, view.session))

    async def facts_of(self, turn: Turn, run: Run, session: Session) -> ResponseFacts:
        """Return what is recorded of a run's response."""
        last = run.last_seq if run.last_seq is not None else run.first_seq - 1
        count = max(last - run.first_seq + 1, 0)
        query = ItemQuery(after=run.first_seq - 1, limit=count, view="log")
        items = await self._gateway.read.items(session, query) if count else []
        recorded = decode_answer(run.result) if run.result else None
        status = recorded.status if recorded else OUTCOME_STATUS[run.outcome or "interrupted"]
        request = read_request(turn.request)
        return ResponseFacts(
            id=response_id(turn.id, run.step),
            request=request,
            created_at=turn.accepted_at,
            status=status,
            output=[item.body for item in items],
            answer=recorded,
            conversation_id=conversation_id(session.id) if request.is_conversation else None,
        )

    async def carry_adopted(self, run: ActiveRun) -> None:
        """Carry out a turn that a crash left behind: the gateway's handler."""
        await self._responder.respond(run, read_request(run.turn.request))

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for a while; the rest stay durable for whoever comes next."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _stop(task: asyncio.Task[Answered]) -> None:
    task.cancel()


def _not_answered(turn: Turn) -> HoldfastError:
    if turn.outcome == "cancelled":
        return TurnCancelled(turn.id, turn.error_code)
    if turn.outcome == "failed":
        return TurnFailed(
            turn.error_message or "the turn failed", failure_code=turn.error_code or "turn_failed"
        )
    return TurnInterrupted(f"turn {turn.id} was interrupted; send it again")
