"""Known failures of agents that the engine rules out before there are channels, cron or children.

What a program of ours would do to run tools, children and command-line agents is done here by
hand, through the Python API or behind the provider port.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

import holdfast
from holdfast.core.errors import ProviderFailure, SessionBusy, SessionRetired, TurnCancelled
from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.model.session import ProviderState
from holdfast.core.transaction.commands import Delete
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.embedded.turn_handle import Item, TurnHandle
from holdfast.ports.provider import Answer, ModelCall, StateUse
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.in_process import ScriptedModel, called, open_gateway, said, text_of

DAY = 86_400.0


@pytest.fixture
async def hf(store_url: str) -> AsyncIterator[Holdfast]:
    async with holdfast.open(store_url) as opened:
        yield opened


async def log(session: SessionHandle) -> list[str]:
    return [text_of(item) for item in await session.items()]


# ── children ────────────────────────────────────────────────────────────────────────────────


async def dispatch(hf: Holdfast, key: str, task: str) -> SessionHandle:
    """Ask a child something; its result goes to the session that is the key's now, by its id."""
    session = await hf.session(key)
    async with session.turn(task) as turn:
        turn.add("I have sent for it")
    return await hf.session(id=session.id)


async def test_f09_the_result_of_a_child_reaches_only_the_generation_that_asked(
    hf: Holdfast,
) -> None:
    asked = await dispatch(hf, "chat", "look it up")
    parent = await hf.session("chat")
    live = await parent.reset()
    async with parent.turn("something else") as turn:
        turn.add("yes?")
    with pytest.raises(SessionRetired, match=live):
        await asked.append("the result", role="assistant", batch_id="child-1")
    assert await log(parent) == ["something else", "yes?"]
    # It is not lost either: the generation that asked is listed, and takes it once it is back.
    await parent.restore(asked.id)
    await asked.append("the result", role="assistant", batch_id="child-1")
    assert await log(parent) == ["look it up", "I have sent for it", "the result"]


async def test_f09_children_that_end_together_each_report_once(hf: Holdfast) -> None:
    parents = {key: await dispatch(hf, key, f"task of {key}") for key in ("a", "b")}
    results = [(key, f"result {n} for {key}", f"child-{key}-{n}") for key in parents for n in "12"]
    await asyncio.gather(
        *(
            parents[key].append(text, role="assistant", batch_id=name)
            for key, text, name in results * 2
        )
    )
    for key, parent in parents.items():
        first, second, *told = await log(parent)
        assert (first, second) == (f"task of {key}", "I have sent for it")
        assert sorted(told) == [f"result 1 for {key}", f"result 2 for {key}"]


# ── command-line agents ─────────────────────────────────────────────────────────────────────


class CommandLine(ScriptedModel):
    """A command-line agent: it keeps sessions in its directory, and knows no others."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = "/a"
        self.kept: dict[tuple[str, str], list[bytes]] = {}
        self.resumed: list[str | None] = []

    def state_use(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> StateUse:
        """A session can be resumed from where it was made."""
        return StateUse(self._state("").slot)

    def _state(self, name: str) -> ProviderState:
        return ProviderState("command-line", f"ann in {self.directory}", "m", name.encode())

    async def answer(self, call: ModelCall) -> Answer:
        """Go on in the session it is told of, or begin one."""
        name = call.state.value.decode() if call.state else None
        self.resumed.append(name)
        history = call.items
        if name is not None:
            known = self.kept.get((self.directory, name))
            if known is None:
                raise ProviderFailure("No conversation found", failure_class="stale_state")
            history = [*known, *call.new_items]
        seen = [text_of(msgspec.json.decode(body)) for body in history]
        answer = [msgspec.json.encode(said(f"seen {len(seen)}, last {seen[-1]}"))]
        made = f"session-{len(self.resumed)}"
        self.kept[self.directory, made] = [*history, *answer]
        return Answer(items=answer, state=self._state(made))


async def test_f10_a_session_of_another_directory_is_rebuilt_instead_of_resumed(
    store_url: str,
) -> None:
    agent = CommandLine()
    answers = []
    async with open_gateway(agent, store_url=store_url) as gateway:
        for directory in ("/a", "/a", "/b", "/b", "/a"):
            agent.directory = directory
            reply = await gateway.respond(f"from {directory}")
            answers.append(text_of(reply.json()["output"][0]))
    assert [answer.split(",")[0] for answer in answers] == [
        "seen 1", "seen 3", "seen 5", "seen 7", "seen 9",
    ]  # fmt: skip
    # Each directory goes on in its own session, and nobody was ever sent to another's.
    assert agent.resumed == [None, "session-1", None, "session-3", "session-2"]


async def test_f62_a_session_that_is_gone_is_forgotten_at_the_first_refusal(store_url: str) -> None:
    agent = CommandLine()
    async with open_gateway(agent, store_url=store_url) as gateway:
        await gateway.respond("one")
        agent.kept.clear()
        reply = await gateway.respond("two")
        assert text_of(reply.json()["output"][0]) == "seen 3, last two"
        await gateway.respond("three")
    assert agent.resumed == [None, "session-1", None, "session-3"]


# ── tools ───────────────────────────────────────────────────────────────────────────────────

CALL = called("pay", "call_1")
PAID: Item = {"type": "function_call_output", "call_id": "call_1", "output": "paid"}


class Payment:
    """A tool that cannot be called off, run as a careful program does: durable before it is begun.

    It is told the turn, by which it could know a caller again that comes twice.
    """

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.is_under_way = asyncio.Event()
        self.may_end = asyncio.Event()

    async def make(self, turn: TurnHandle) -> None:
        """Pay."""
        turn.add(CALL)
        await turn.checkpoint()
        self.callers.append(turn.id)
        self.is_under_way.set()
        await self.may_end.wait()
        turn.add(PAID)


async def test_f29_a_call_that_was_cut_off_is_reported_as_unknown_and_its_late_result_is_refused(
    hf: Holdfast,
) -> None:
    session, payment = await hf.session("k"), Payment()
    making: list[asyncio.Future[None]] = []

    async def buy() -> None:
        async with session.turn("buy it") as turn:
            making.append(asyncio.ensure_future(payment.make(turn)))
            await asyncio.shield(making[0])

    buying = asyncio.create_task(buy())
    await payment.is_under_way.wait()
    async with session.turn("did you?", on_busy="interrupt") as turn:
        shown = [text_of(item) for item in await turn.context()]
        turn.add("I do not know whether it went through")
    with pytest.raises(TurnCancelled):
        await buying
    payment.may_end.set()
    await making[0]
    assert shown[:2] == ["buy it", "pay()"]
    assert shown[2].startswith("=interrupted")
    assert shown[3] == "did you?"
    assert "=paid" not in await log(session)
    assert len(payment.callers) == 1


async def test_f29_a_resumed_turn_sees_the_call_that_may_have_been_made(
    hf: Holdfast, store_url: str
) -> None:
    session, payment = await hf.session("k"), Payment()

    async def buy(handle: SessionHandle) -> list[str]:
        async with handle.turn("buy it", idempotency_key="once") as turn:
            shown = [text_of(item) for item in await turn.context()]
            if "pay()" not in shown:
                await payment.make(turn)
            turn.add("it may have been paid")
        return shown

    torn = asyncio.create_task(buy(session))
    await payment.is_under_way.wait()
    torn.cancel()
    await asyncio.gather(torn, return_exceptions=True)
    async with holdfast.open(store_url) as other:
        shown = await buy(await other.session("k"))
        [turn] = await (await other.session("k")).turns()
    assert shown[:2] == ["buy it", "pay()"]
    assert shown[2].startswith("=interrupted")
    assert payment.callers == [turn.turn.id]


# ── guardrails ──────────────────────────────────────────────────────────────────────────────


class Refused(Exception):
    """A guardrail has been touched."""


@pytest.mark.parametrize("is_stream", [False, True])
async def test_f31_what_a_guardrail_refuses_is_not_kept_and_what_was_done_is(
    hf: Holdfast, is_stream: bool
) -> None:
    session = await hf.session("k")

    async def answer(turn: TurnHandle) -> None:
        turn.add([CALL, PAID])
        if is_stream:
            await turn.checkpoint()
        text = "the secret is 42"
        if "secret" in text:
            raise Refused
        turn.add(text)

    with pytest.raises(Refused):
        async with session.turn("buy it") as turn:
            await answer(turn)
    assert await log(session) == ["buy it", "pay()", "=paid"]
    async with session.turn("and now?") as turn:
        assert [text_of(i) for i in await turn.context()] == [
            "buy it",
            "pay()",
            "=paid",
            "and now?",
        ]
        turn.add("done")


# ── retention ───────────────────────────────────────────────────────────────────────────────


async def test_f51_what_is_old_and_in_use_is_not_pruned(store_url: str) -> None:
    clock = ManualClock()
    is_postgres = store_url.startswith("postgresql:")
    store = await (open_postgres if is_postgres else open_store)(store_url, clock=clock)
    try:
        caller = StoreClient(store)
        await caller.enlist(lease_seconds=400 * DAY)
        old = (await caller.converse("long ago", "yes", key="old")).session
        unused = (await caller.converse("once", "yes", key="unused")).session
        clock.advance(300 * DAY)
        await caller.converse("today", "still here", key="old")
        clock.advance(DAY)
        idle = await store.read.idle_sessions(30 * DAY, after=SessionId(""), limit=9)
        assert idle == [(DEFAULT_TENANT, unused.id)]
        prune = Delete(tenant=DEFAULT_TENANT, session_id=old.id, idle_seconds=30 * DAY)
        with pytest.raises(SessionBusy):
            await caller.submit(prune)
        running = await caller.start("at work", key="unused")
        with pytest.raises(SessionBusy):
            await caller.submit(msgspec.structs.replace(prune, session_id=unused.id))
        await caller.finish(running, "done")
        assert await caller.texts(old) == ["long ago", "yes", "today", "still here"]
        assert await caller.texts(unused) == ["once", "yes", "at work", "done"]
    finally:
        await store.close()
