"""One simulated process: the real engine on the shared store, and a small server.

The server does what any API does: it accepts a turn, enters its lane, calls the model, ends the
run, and answers; or it detects a repeated request, and attaches to its one turn.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    RunFenced,
    TurnCancelled,
    TurnFailed,
    TurnInterrupted,
    TurnNotFound,
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.delivery import Delivery
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.request import TurnRequest as DeskRequest
from holdfast.core.model.request import write_request
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.model.turn import RUN_AGAIN, OnBusy, Source, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Append,
    Finish,
    Parent,
    Queued,
    Repeated,
    Started,
)
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.embedded.turn_handle import TurnHandle
from holdfast.engine.maintenance.search_indexer import SearchIndexer
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ToolSettings
from holdfast.engine.turns.approvals import ApprovalService
from holdfast.engine.turns.executor import TurnResult
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.http.request.submit_turn import TurnSubmitter
from holdfast.schedules.service import Scheduler
from holdfast.stores.sql.store import SqlStore
from tests.simulation.compacting import BY_MODEL, BY_RULE, compact
from tests.simulation.disk import Fault, SimulatedDriver
from tests.simulation.indexing import follow
from tests.simulation.model import EntryPoint, ModelFailure, Script, text_of
from tests.simulation.plan import SERVED, Op
from tests.simulation.schedule import Life
from tests.simulation.tools import ASKING, REQUESTED, SimulatedTools
from tests.simulation.upstream import (
    CHAINED,
    CONVERSED,
    FIELD,
    REPLAYED,
    Upstream,
    WitnessedResponder,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

ResultT = TypeVar("ResultT")
_encode = msgspec.json.Encoder().encode
_read_script = msgspec.json.Decoder(Script).decode

FLUSH_SECONDS = 0.3
"""How long requests may go on after a stop has ended their turns, before they are cancelled."""


TOOLS = ToolSettings(approval_seconds=2.0)


class ConnectionLost(Exception):
    """The process or the connection failed; what was done is unknown."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer of a run, as it is stored with the run for repeats."""

    run_id: str
    text: str
    calls: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """The answer to a client."""

    turn_id: str
    session_id: str
    status: str
    stored: StoredAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One request of a client."""

    tenant: Tenant
    key: Key | None = None
    session_id: SessionId | None = None
    items: tuple[NewItem, ...] = ()
    script: Script
    source: Source = "user"
    on_busy: OnBusy = "enqueue"
    is_internal: bool = False
    idempotency_key: str | None = None
    retry_count: int = 0
    rewind: tuple[int, int] | None = None
    parent: Parent | None = None
    collect_seconds: float = 0.0
    entry_point: EntryPoint = "server"

    def body_hash(self) -> bytes:
        """Return the hash that is equal for repeats of a request."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.key or "", self.session_id or "", _encode(self.script)):
            digest.update(part.encode() if isinstance(part, str) else part)
        for item in self.items:
            digest.update(b"\0" + item.body)
        return digest.digest()


class Replica:
    """A process that can be called, frozen, killed and restarted under a new name."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.life = Life(name)
        self.is_ready = False
        self.is_stopping = False
        self.driver = world.wrap(SimulatedDriver(world.disk, self))
        self.store = SqlStore(self.driver, world.tokens.of(name))
        self.gateway = Gateway(
            self.store,
            clock=world.clock,
            ids=world.ids,
            settings=world.plan.lanes,
            limits=world.plan.lanes.limits(
                can_run_again=True, max_tenant_turns=world.plan.max_tenant_turns
            ),
        )
        upstream = Upstream(
            world.model,
            world.memory,
            next_moment=world.next_moment,
            blame=world.blame,
            kill=self._be_killed,
            witness=self.witness,
        )
        compactor = Compactor(
            self.gateway,
            lambda _: upstream,
            windows=lambda _: world.plan.window,
            settings=BY_RULE if world.plan.elides else BY_MODEL,
        )
        responder = WitnessedResponder(
            self.gateway,
            lambda _: upstream,
            compactor=compactor,
            toolbox=SimulatedTools(world.tools, self.witness),
            tools=TOOLS,
        )
        self.turn_service = TurnService(self.gateway, responder)
        self.approvals = ApprovalService(self.gateway, self.turn_service)
        self.submitter = TurnSubmitter(self.gateway, self.turn_service, world.plan.reset)
        self.scheduler = Scheduler(self.gateway, self.turn_service)
        self.indexer = SearchIndexer(self.gateway)
        self._following: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    # ── its life ────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the process."""
        self._starting = self.life.begin(self.world.loop, self._start(), f"{self.name}-start")

    async def _start(self) -> None:
        while not self.is_ready:
            try:
                await self.gateway.start(self._carry_adopted)
            except HoldfastError as exc:
                self.world.say(f"{self.name} did not start: {exc.code}")
                await asyncio.sleep(0.2)
            else:
                self.is_ready = True
        if self.world.plan.has_schedules:
            await self.scheduler.start()
        if self.world.plan.indexes:
            self._following = asyncio.create_task(follow(self.indexer), name=f"{self.name}-index")

    def strike(self, fault: Fault) -> None:
        """Apply a fault of the disk."""
        self.world.strike(self, fault)

    def freeze(self) -> None:
        """Freeze all tasks until thawed."""
        self.life.is_frozen = True

    def kill(self) -> None:
        """End at once; callers that wait get `ConnectionLost`."""
        self.life.is_over = True
        self.is_ready = False
        for answer in list(self._calls.values()):
            if not answer.done():
                answer.set_exception(ConnectionLost(self.name))
        self._calls.clear()

    async def stop(self, grace_seconds: float) -> None:
        """Stop in the order of the application: no more requests, its turns, its lease."""
        self.is_stopping = True
        own = asyncio.current_task()
        await self.scheduler.stop()
        if self._following is not None:
            self._following.cancel()
        await self.turn_service.stop(grace_seconds)
        requests = {task for task in (*self._calls, *self._background) if task is not own}
        if requests:
            await asyncio.wait(requests, timeout=FLUSH_SECONDS)
        for task in requests:
            task.cancel()
        await self.turn_service.stop(0.0)
        await self.gateway.stop()

    @contextmanager
    def witness(self, what: str) -> Iterator[None]:
        """Count work that a clean stop interrupts."""
        try:
            yield
        except asyncio.CancelledError:
            if self.is_stopping and not self.world.disk.is_over:
                self.world.facts[f"a stop interrupted {what}"] += 1
            raise

    async def call(
        self, work: Callable[[], Coroutine[Any, Any, ResultT]], *, timeout: float, hangs_up: bool
    ) -> ResultT:
        """Call this process from outside; with `hangs_up` a timeout also cancels the work."""
        if not self.is_ready or self.is_stopping:
            raise ConnectionLost(self.name)
        loop = self.world.loop
        answer: asyncio.Future[ResultT] = loop.create_future()
        task = self.life.begin(loop, work(), f"{self.name}-call")
        self._calls[task] = answer
        task.add_done_callback(self._relay, context=self.life.context())
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            if hangs_up:
                task.cancel()
            raise ConnectionLost(f"{self.name} is silent") from None

    def _relay(self, task: asyncio.Task[Any]) -> None:
        answer = self._calls.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HoldfastError | ConnectionLost):
            self.world.blame(f"{self.name} broke: {error!r}", error)
        if answer is None or answer.done():
            return
        if task.cancelled():
            answer.set_exception(ConnectionLost(self.name))
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    # ── what it serves ──────────────────────────────────────────────────────────────────────

    async def turn(self, request: TurnRequest) -> Answer:
        """Execute a turn, or attach to the turn that this request already has."""
        if request.entry_point == "embedded":
            return await self._embedded_turn(request)
        if request.entry_point in SERVED:
            return await self._desk_turn(request)
        admission = await self.gateway.accept(self._accept(request))
        if isinstance(admission, Repeated):
            return await self._attach(admission)
        if request.source in RUN_AGAIN:
            work = self._carry_background(admission)
            task = asyncio.create_task(work, name=f"{self.name}-background")
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return Answer(admission.turn.id, admission.session.id, "accepted")
        return await self._carry(admission)

    def _accept(self, request: TurnRequest) -> Accept:
        ids = self.gateway.ids
        return Accept(
            tenant=request.tenant,
            turn_id=TurnId(ids.new("turn")),
            run_id=RunId(ids.new("run")),
            worker=self.gateway.worker.id,
            candidate_id=self.gateway.new_session_id(),
            key=request.key,
            session_id=request.session_id,
            items=request.items,
            request=_encode(request.script),
            source=request.source,
            on_busy=request.on_busy,
            is_internal=request.is_internal,
            idempotency_key=request.idempotency_key,
            body_hash=request.body_hash(),
            retry_count=request.retry_count,
            rewind=request.rewind,
            parent=request.parent,
            collect_seconds=request.collect_seconds,
            limits=self.gateway.limits,
            reset=self.world.plan.reset,
        )

    async def _carry_background(self, admission: Started | Queued) -> None:
        try:
            await self._carry(admission)
        except HoldfastError as exc:
            self.world.say(f"{self.name} background {admission.turn.id}: {exc.code}")

    async def _carry(self, admission: Started | Queued) -> Answer:
        run = await self.gateway.enter(admission)
        try:
            return await self._run(run)
        except RunFenced as exc:
            raise await self._why_lost(run) from exc
        finally:
            self.gateway.leave(run)

    async def _carry_adopted(self, run: ActiveRun) -> None:
        self.world.facts["a turn left behind was adopted"] += 1
        if b'"api"' in run.turn.request:
            await self.turn_service.run_recovered(run)
        else:
            await self._run(run)

    def _be_killed(self) -> None:
        self.world.strike(self, Fault(write=0, kind="crash", seconds=0.3))

    async def _desk_turn(self, request: TurnRequest) -> Answer:
        """Execute a turn through the turn service, which every API uses."""
        is_background = request.source in RUN_AGAIN
        fields = {FIELD: msgspec.Raw(_encode(request.script))}
        if request.script.tool_steps:
            fields["tools"] = ASKING if request.script.asks else REQUESTED
        asked = DeskRequest(
            api="responses",
            model=self._model_of(request.script),
            fields=fields,
            is_background=is_background,
            is_stream=request.entry_point == "stream",
            delivery=_delivery(request) if request.collect_seconds else None,
            sender=sender_of(request.tenant),
        )
        accept = replace(self._accept(request), request=write_request(asked))
        is_live = asked.is_stream or is_background
        is_deferred = request.entry_point == "request_task" and not is_live
        ticket = await self.turn_service.accept(
            accept, asked, is_live=is_live, is_deferred=is_deferred
        )
        if is_background:
            return Answer(ticket.turn.id, ticket.session.id, "accepted")
        if ticket.task is None and ticket.outcome is None and ticket.unstarted is None:
            return await self._read_stream(ticket)
        answered = await ticket.answer()
        return _answer_of(answered)

    def _model_of(self, script: Script) -> str:
        if self.world.plan.has_conversations:
            return CONVERSED
        return CHAINED if script.checkpoints else REPLAYED

    async def _read_stream(self, ticket: TurnTicket) -> Answer:
        """Read a stream of an earlier request to its end, and return its answer."""
        reader = ticket.reader()
        while await reader.take(1.0) is not None:
            pass
        view = await self.gateway.read.turn(ticket.turn.tenant, ticket.turn.id)
        if view is None:
            raise TurnNotFound(f"no turn {ticket.turn.id}")
        recalled = await self.turn_service.load_result(ticket.turn.tenant, view.turn, ticket.step)
        return _answer_of(recalled)

    async def _run(self, run: ActiveRun) -> Answer:
        """Call the model and end the run; a lost lane cancels the call at once."""
        script = _read_script(run.turn.request)
        asking = asyncio.ensure_future(self._ask(run, script))
        run.on_lost(lambda: _stop(asking))
        try:
            ending = await asking
        except ModelFailure as failure:
            ending = Finish(
                fence=run.fence,
                outcome="failed",
                error_code="model_failed",
                is_retryable=failure.is_retryable,
            )
        except asyncio.CancelledError:
            if run.is_lost:
                raise RunFenced(f"run {run.fence.run_id} was stopped") from None
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if run.turn.source not in RUN_AGAIN:
                await self._leave_as_interrupted(run)
            raise
        ended = await run.finish(ending)
        if ended.turn.outcome == "failed":
            raise TurnFailed("the model failed", failure_code="model_failed")
        status = "requires_action" if ending.pending_calls else "completed"
        stored = msgspec.json.decode(ending.result or b"null", type=StoredAnswer | None)
        return Answer(ended.turn.id, ended.session.id, status, stored)

    async def _ask(self, run: ActiveRun, script: Script) -> Finish:
        world = self.world
        call = world.model.hear(run, script, await run.context(), world.next_moment())
        pause = script.seconds / (script.checkpoints + 1)
        for number in range(script.checkpoints):
            await asyncio.sleep(pause)
            note = message("assistant", f"note {script.op} {run.fence.run_id} {number}")
            await run.extend([note])
        if script.partial:
            await run.extend(partial=[message("assistant", f"half {script.op}")])
        if script.ending == "kill" and call.step == 0:
            self._be_killed()
        said = await world.model.answer(call, script, pause)
        stored = StoredAnswer(run.fence.run_id, said.text, said.pending_calls)
        state = ProviderState("sim", "acc", "model", run.fence.run_id.encode())
        return Finish(
            fence=run.fence,
            outcome="completed",
            items=said.items,
            usage=said.usage,
            result=_encode(stored),
            provider_state=state,
            pending_calls=said.pending_calls,
            hold_seconds=self.gateway.settings.tool_wait_seconds,
        )

    async def _leave_as_interrupted(self, run: ActiveRun) -> None:
        ending = Finish(
            fence=run.fence, outcome="interrupted", error_code="caller_left", is_retryable=True
        )
        try:
            await asyncio.shield(run.finish(ending))
        except HoldfastError as exc:
            self.world.say(f"{self.name} could not leave {run.turn.id}: {exc.code}")

    async def _why_lost(self, run: ActiveRun) -> HoldfastError:
        view = await self.gateway.read.turn(run.turn.tenant, run.turn.id)
        if view is None or view.turn.outcome == "cancelled":
            return TurnCancelled(run.turn.id, view.turn.error_code if view else "session_deleted")
        return TurnInterrupted(f"turn {run.turn.id} was taken over")

    async def _attach(self, repeated: Repeated) -> Answer:
        """Wait for the one turn of this request and return its answer."""
        turn, step = repeated.turn, repeated.step
        if turn.source not in RUN_AGAIN and not repeated.is_settled:
            view = await self.gateway.wait_until_ended(turn.tenant, turn.id, step=step)
            turn = view.turn
            if view.status == "interrupted":
                raise TurnInterrupted(f"turn {turn.id} was interrupted")
        for run in await self.gateway.read.runs(turn.id):
            if run.step == step and run.outcome == "completed" and run.result is not None:
                stored = msgspec.json.decode(run.result, type=StoredAnswer)
                status = "requires_action" if stored.calls else "completed"
                return Answer(turn.id, turn.session_id, status, stored)
        return self._end_of(turn)

    def _end_of(self, turn: Turn) -> Answer:
        match turn.outcome:
            case "cancelled":
                raise TurnCancelled(turn.id, turn.error_code)
            case "failed":
                code = turn.error_code or "turn_failed"
                raise TurnFailed("the turn failed", failure_code=code)
            case "interrupted":
                raise TurnInterrupted(f"turn {turn.id} was interrupted")
            case _:
                return Answer(turn.id, turn.session_id, "accepted")

    async def _embedded_turn(self, request: TurnRequest) -> Answer:
        """Execute a turn through the Python API."""
        hold = Holdfast(self.gateway, request.tenant, self.world.plan.reset)
        session = await hold.session(request.key, id=request.session_id)
        handle = session.turn(
            [item.body for item in request.items],
            idempotency_key=request.idempotency_key,
            on_busy=request.on_busy,
            source=request.source,
            internal=request.is_internal,
            request=_encode(request.script),
        )
        try:
            async with handle as turn:
                if not turn.is_done:
                    await self._answer_embedded(turn, request.script)
        except ModelFailure:
            raise TurnFailed("the model failed", failure_code="model_failed") from None
        output = await handle.output()
        content = output[-1].get("content") if output else None
        text = content[0]["text"] if content else ""
        stored = StoredAnswer(text.rpartition(" ")[2], text) if text else None
        return Answer(handle.id, session.id, "completed", stored)

    async def _answer_embedded(self, turn: TurnHandle, script: Script) -> None:
        run = turn._active()
        call = self.world.model.hear(run, script, await run.context(), self.world.next_moment())
        said = await self.world.model.answer(call, script, script.seconds)
        turn.add([item.body for item in said.items])
        turn.spent(said.usage)

    async def compact(self, op: Op, session_id: SessionId) -> Session:
        """Compact a session on request."""
        return await compact(self.gateway, op, session_id, self.witness)

    async def append(self, tenant: Tenant, key: Key, said: str, batch: str | None) -> Answer:
        """Append one item without a run."""
        items = (message("user", said),)
        appended = await append_items(
            self.gateway,
            Append(
                tenant=tenant,
                turn_id=TurnId(self.gateway.ids.new("turn")),
                worker=self.gateway.worker.id,
                candidate_id=self.gateway.new_session_id(),
                key=key,
                items=items,
                idempotency_key=batch,
                body_hash=hashlib.blake2b(items[0].body, digest_size=16).digest(),
            ),
        )
        status = str(appended.turn.outcome)
        return Answer(appended.turn.id, appended.session.id, status, None)


def sender_of(tenant: str) -> str:
    """Return who sends the turns of a tenant, and may approve calls of its tools."""
    return f"sender-{tenant}"


def _delivery(request: TurnRequest) -> Delivery:
    return Delivery(
        channel="sim", chat=request.key or "", sender=request.tenant,
        collect_seconds=request.collect_seconds,
    )  # fmt: skip


def _answer_of(answered: TurnResult) -> Answer:
    output = [msgspec.json.decode(body) for body in answered.response.output]
    calls = tuple(item["call_id"] for item in output if item["type"] == "function_call")
    text = text_of(answered.response.output[-1])
    if not text:  # it was erased, or waits for an approval
        return Answer(answered.turn.id, answered.session.id, "accepted")
    stored = StoredAnswer(text.rpartition(" ")[2], text, calls)
    status = "requires_action" if calls else "completed"
    return Answer(answered.turn.id, answered.session.id, status, stored)


def _stop(asking: "asyncio.Future[Any]") -> None:
    asking.cancel()
