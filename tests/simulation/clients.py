"""The clients: they send, wait, time out, retry like SDKs, and record everything."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.compaction.records import list_compactions
from holdfast.core.errors import HoldfastError
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import NewItem, message, write_item
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import (
    Cancel,
    Delete,
    Fork,
    Hide,
    Parent,
    Pop,
    Reset,
    Restore,
    UndoCompaction,
)
from holdfast.ports.store import ItemQuery, SessionQuery
from tests.simulation.approving import answer_approval
from tests.simulation.batches import add_batches
from tests.simulation.erasing import erase, search
from tests.simulation.model import Script, text_of
from tests.simulation.plan import TENANTS, Op
from tests.simulation.replica import Answer, ConnectionLost, Replica, TurnRequest
from tests.simulation.scheduling import operate, stop
from tests.simulation.stopping import Sent, stop_reading

if TYPE_CHECKING:
    from tests.simulation.world import World


OPERATING = ("schedule", "fire", "pause", "resume", "unschedule")


@dataclass(slots=True)
class Heard:
    """One attempt of one op, and its result."""

    op: Op
    part: str
    sent: int
    """When it was sent, in the order of all events of the world."""
    heard: int = 0
    answer: Any = None
    error: str | None = None
    """The error's code, or `lost` if it is unknown what was done."""


@dataclass
class Clients:
    """Every client of a world."""

    world: "World"
    heard: list[Heard] = field(default_factory=list)
    seen: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Session ids that clients received, by tenant and key, in order."""
    sent: list[Sent] = field(default_factory=list)
    """The requests of clients that stop reading."""

    async def perform(self, op: Op) -> None:
        """Execute one op at its time."""
        await asyncio.sleep(op.at)
        rng = random.Random(f"client {self.world.plan.seed} {op.id}")
        actions: dict[str, Callable[[Op, random.Random], Coroutine[Any, Any, None]]] = {
            "turn": self._turn,
            "append": self._append,
            "reset": self._reset,
            "restore": self._restore,
            "delete": self._delete,
            "fork": self._fork,
            "cancel": self._cancel,
            "edit": self._edit,
            "read": self._read,
            "pry": self._pry,
            "compact": self._compact,
            "undo": self._undo,
            "batches": partial(add_batches, self),
            "child": self._child,
            "hide": self._hide,
            "pop": self._hide,
            "erase": partial(erase, self),
            "search": partial(search, self),
            "approve": partial(answer_approval, self),
            "stop": partial(stop, self),
            "stop_reading": partial(stop_reading, self),
            **dict.fromkeys(OPERATING, partial(operate, self)),
        }
        await actions[op.kind](op, rng)

    # ── one try ─────────────────────────────────────────────────────────────────────────────

    async def ask(
        self,
        op: Op,
        rng: random.Random,
        work: Callable[[Replica], Coroutine[Any, Any, Any]],
        part: str = "",
    ) -> Heard:
        """Send once to some process, and record the result."""
        world = self.world
        replica = rng.choice(world.replicas)
        heard = Heard(op, part, world.next_moment())
        try:
            heard.answer = await replica.call(
                lambda: work(replica), timeout=op.patience, hangs_up=op.hangs_up
            )
        except ConnectionLost:
            heard.error = "lost"
        except HoldfastError as exc:
            heard.error = exc.code
            heard.answer = exc
        heard.heard = world.next_moment()
        self.heard.append(heard)
        self._note_session(op, heard)
        return heard

    def _note_session(self, op: Op, heard: Heard) -> None:
        session_id = None
        if isinstance(heard.answer, Answer) and not op.is_internal and op.kind != "child":
            session_id = heard.answer.session_id
        elif isinstance(heard.answer, Session) and heard.answer.key is not None:
            session_id = heard.answer.id
        if session_id is not None:
            self.seen.setdefault((op.tenant, op.key), []).append(session_id)

    def once_seen(self, op: Op) -> SessionId | None:
        """Return a session that the key's clients saw last, or earlier."""
        seen = self.seen.get((op.tenant, op.key))
        return SessionId(seen[0 if op.choice % 2 else -1]) if seen else None

    # ── turns ───────────────────────────────────────────────────────────────────────────────

    async def _turn(self, op: Op, rng: random.Random) -> None:
        body = op.same_as or op.id
        items = (message("user", said_by(op, body)),)
        heard = await self._insist(op, rng, items, op.idempotency_key)
        while heard is not None and heard.answer.status == "requires_action":
            await asyncio.sleep(op.tool_seconds)
            outputs = tuple(_output(call, op) for call in heard.answer.stored.calls)
            key = f"{op.idempotency_key}/outputs" if op.idempotency_key else None
            heard = await self._insist(op, rng, outputs, key, part="outputs")

    async def _insist(
        self,
        op: Op,
        rng: random.Random,
        items: tuple[NewItem, ...],
        idempotency_key: str | None,
        part: str = "",
        rewind: tuple[int, int] | None = None,
        parent: tuple[SessionId, Parent] | None = None,
    ) -> Heard | None:
        """Retry until it is answered or finally rejected, or the attempts are used up."""
        session_id = self.once_seen(op) if op.by_id else None
        if parent is not None:
            session_id = parent[0]
        for count in range(op.tries):
            request = TurnRequest(
                tenant=Tenant(op.tenant),
                key=None if session_id else Key(op.key),
                session_id=session_id,
                items=items,
                script=_script_of(op, is_last=bool(part)),
                source=op.source,
                on_busy=op.on_busy,
                is_internal=op.is_internal,
                idempotency_key=idempotency_key,
                retry_count=count if idempotency_key is None else 0,
                rewind=rewind,
                parent=parent[1] if parent is not None else None,
                collect_seconds=op.collect_seconds,
                entry_point=op.entry_point
                if not part or op.entry_point != "embedded"
                else "server",
            )
            heard = await self.ask(op, rng, lambda r, q=request: r.turn(q), part)  # type: ignore[misc]
            if heard.error is None:
                return heard
            if heard.error != "lost" and not heard.answer.retryable:
                return None
            await asyncio.sleep(rng.choice((0.0, 0.1, 0.6, 2.0)))
        return None

    async def _edit(self, op: Op, rng: random.Random) -> None:
        """Send a turn that keeps only a part of what the client saw."""

        async def check(replica: Replica) -> tuple[int, int] | None:
            view = await replica.gateway.read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None or not view.session.head_seq:
                return None
            head = view.session.head_seq
            return max(0, head - 1 - op.choice), head

        heard = await self.ask(op, rng, check, "look")
        if heard.answer is None or heard.error is not None:
            return
        items = (message("user", said_by(op, op.id)),)
        await self._insist(op, rng, items, op.idempotency_key, rewind=heard.answer)

    async def _child(self, op: Op, rng: random.Random) -> None:
        """Continue after an answer that a client got; there may be later ones."""

        async def find(replica: Replica) -> tuple[SessionId, Parent] | None:
            tenant = Tenant(op.tenant)
            view = await replica.gateway.read.session(tenant, key=Key(op.key))
            turns = await replica.gateway.read.turns(view.session.id) if view is not None else []
            done = [each.turn for each in turns if each.turn.outcome == "completed"]
            if not done:
                return None
            turn = done[op.choice % len(done)]
            for run in reversed(await replica.gateway.read.runs(turn.id)):
                if run.outcome == "completed" and run.last_seq is not None:
                    return turn.session_id, Parent(run.last_seq, run.record_no or 0)
            return None

        heard = await self.ask(op, rng, find, "look")
        if heard.answer is None or heard.error is not None:
            return
        items = (message("user", said_by(op, op.id)),)
        await self._insist(op, rng, items, op.idempotency_key, parent=heard.answer)

    async def _hide(self, op: Op, rng: random.Random) -> None:
        """Hide one of the last items, or the last one that is visible."""

        async def work(replica: Replica) -> object:
            gateway, tenant = replica.gateway, Tenant(op.tenant)
            view = await gateway.read.session(tenant, key=Key(op.key))
            if view is None:
                return None
            if op.kind == "pop":
                pop = Pop(tenant=tenant, session_id=view.session.id, pop_id=op.id)
                return await gateway.submit(pop)
            seq = view.session.head_seq - op.choice
            if seq < 1:
                return None
            hide = Hide(tenant=tenant, session_id=view.session.id, from_seq=seq, to_seq=seq)
            return await gateway.submit(hide)

        await self.ask(op, rng, work)

    async def _append(self, op: Op, rng: random.Random) -> None:
        said = said_by(op, op.id)
        for _ in range(op.tries if op.idempotency_key else 1):
            heard = await self.ask(
                op,
                rng,
                lambda r: r.append(Tenant(op.tenant), Key(op.key), said, op.idempotency_key),
            )
            if heard.error is None or (heard.error != "lost" and not heard.answer.retryable):
                return
            await asyncio.sleep(0.4)

    # ── sessions ────────────────────────────────────────────────────────────────────────────

    async def _reset(self, op: Op, rng: random.Random) -> None:
        expected = self.once_seen(op) if op.expects else None

        async def work(replica: Replica) -> Session | None:
            gateway = replica.gateway
            view = await gateway.read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None:
                return None
            command = Reset(
                tenant=Tenant(op.tenant),
                session_id=view.session.id,
                new_id=gateway.new_session_id(),
                expected_id=expected,
            )
            return await gateway.submit(command)

        await self.ask(op, rng, work)

    async def _restore(self, op: Op, rng: random.Random) -> None:
        async def work(replica: Replica) -> Session | None:
            gateway = replica.gateway
            query = SessionQuery(key=Key(op.key), generations=True, order="asc")
            found = await gateway.read.sessions(Tenant(op.tenant), query)
            if not found:
                return None
            retired = [view for view in found if view.status == "retired"] or found
            chosen = retired[op.choice % len(retired)].session
            return await gateway.submit(Restore(tenant=Tenant(op.tenant), session_id=chosen.id))

        await self.ask(op, rng, work)

    async def _delete(self, op: Op, rng: random.Random) -> None:
        async def work(replica: Replica) -> Session | None:
            gateway = replica.gateway
            view = await gateway.read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None:
                return None
            command = Delete(
                tenant=Tenant(op.tenant), session_id=view.session.id, cascade=op.choice < 2
            )
            return await gateway.submit(command)

        await self.ask(op, rng, work)

    async def _fork(self, op: Op, rng: random.Random) -> None:
        """Fork a session, and send a turn to the fork."""

        async def work(replica: Replica) -> Session | None:
            gateway = replica.gateway
            view = await gateway.read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None:
                return None
            command = Fork(
                tenant=Tenant(op.tenant),
                session_id=view.session.id,
                new_id=gateway.new_session_id(),
                after_seq=min(op.choice, view.session.head_seq) if op.expects else None,
            )
            return await gateway.submit(command)

        heard = await self.ask(op, rng, work)
        if not isinstance(heard.answer, Session):
            return
        request = TurnRequest(
            tenant=Tenant(op.tenant),
            session_id=heard.answer.id,
            items=(message("user", said_by(op, op.id)),),
            script=Script(op=op.id, seconds=0.1),
        )
        await self.ask(op, rng, lambda r: r.turn(request), "fork")

    async def _compact(self, op: Op, rng: random.Random) -> None:
        """Request a summary of a session; repeat the request if there is no answer."""
        session_id = self.once_seen(op)
        if session_id is None:
            return
        for _ in range(op.tries if op.idempotency_key else 1):
            heard = await self.ask(op, rng, lambda r: r.compact(op, session_id))
            if heard.error is None or (heard.error != "lost" and not heard.answer.retryable):
                return
            await asyncio.sleep(0.4)

    async def _undo(self, op: Op, rng: random.Random) -> None:
        """Undo a compaction of a session."""
        session_id, undone = self.once_seen(op), ""

        async def work(replica: Replica) -> Session | None:
            nonlocal undone
            gateway = replica.gateway
            view = await gateway.read.session(Tenant(op.tenant), session_id=session_id)
            if view is None:
                return None
            made = list_compactions(view.session, await gateway.read.records(view.session))
            if not made:
                return None
            undone = made[op.choice % len(made)].id
            return await gateway.submit(
                UndoCompaction(
                    tenant=Tenant(op.tenant), session_id=view.session.id, compaction_id=undone
                )
            )

        if session_id is not None:
            heard = await self.ask(op, rng, work)
            heard.part = undone

    async def _cancel(self, op: Op, rng: random.Random) -> None:
        async def work(replica: Replica) -> Any:
            gateway = replica.gateway
            view = await gateway.read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None:
                return None
            turns = await gateway.read.turns(view.session.id, order="desc")
            if not turns:
                return None
            turn = turns[op.choice % len(turns)].turn
            if op.expects:
                return await replica.turn_service.cancel(turn)
            return await gateway.submit(Cancel(tenant=Tenant(op.tenant), turn_id=turn.id))

        await self.ask(op, rng, work)

    async def _read(self, op: Op, rng: random.Random) -> None:
        async def work(replica: Replica) -> tuple[str, ...] | None:
            read = replica.gateway.read
            view = await read.session(Tenant(op.tenant), key=Key(op.key))
            if view is None:
                return None
            items = await read.items(view.session, ItemQuery())
            return tuple(text_of(item.body) for item in items)

        await self.ask(op, rng, work)

    async def _pry(self, op: Op, rng: random.Random) -> None:
        """Use another tenant's ids: each must look as if it did not exist."""
        other = TENANTS[1] if op.tenant == TENANTS[0] else TENANTS[0]
        theirs = self.seen.get((op.tenant, op.key))
        turns = [h.answer.turn_id for h in self.heard if isinstance(h.answer, Answer)
                 and h.op.tenant == op.tenant]  # fmt: skip
        if not theirs:
            return
        session_id = SessionId(theirs[-1])
        request = TurnRequest(
            tenant=Tenant(other),
            session_id=session_id,
            items=(message("user", f"{other} pries"),),
            script=Script(op=op.id),
        )
        await self.ask(op, rng, lambda r: r.turn(request), "pry turn")
        reset = Reset(tenant=Tenant(other), session_id=session_id, new_id=SessionId(f"x{op.id}"))
        await self.ask(op, rng, lambda r: r.gateway.submit(reset), "pry reset")
        if turns:
            cancel = Cancel(tenant=Tenant(other), turn_id=TurnId(turns[-1]))
            await self.ask(op, rng, lambda r: r.gateway.submit(cancel), "pry cancel")


def said_by(op: Op, body: str) -> str:
    """Return the unique text of an op."""
    return f"{op.tenant}|{op.key}|{body}"


def _script_of(op: Op, *, is_last: bool) -> Script:
    """Return the model's script; after a client's outputs it calls no more tools."""
    script = replace(op.script or Script(op=op.id), op=op.same_as or op.id)
    return replace(script, ending="answer") if is_last else script


def _output(call_id: str, op: Op) -> NewItem:
    output = f"{said_by(op, op.id)} {'and so on ' * 80}"
    return write_item({"type": "function_call_output", "call_id": call_id, "output": output})
