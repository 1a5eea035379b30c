"""A process dies at any write of a turn with tools; another one finishes the turn."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast.core.errors import StoreClosed
from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId
from holdfast.core.model.items import message
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.model.synthetic_outputs import OUTCOME_UNKNOWN
from holdfast.core.transaction.commands import Accept, Command, ExpireWorker, Extend
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.engine.turns.executor import TurnExecutor
from holdfast.engine.turns.turn_service import TurnService
from holdfast.ports.store import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from holdfast.testing.ids import SequentialIds
from tests.in_process import Item, ScriptedModel, called, said
from tests.tools.toolboxes import SERVER, RecordingTools, echo

OutcomeT = TypeVar("OutcomeT")
STEPS = 3
"""How often the model calls its tool before it answers."""


class DyingStore:
    """The store of a process that dies at one of its writes, before or after the commit."""

    def __init__(self, inner: Store, dies_at: int, *, is_committed: bool) -> None:
        self._inner = inner
        self._dies_at = dies_at
        self._is_committed = is_committed
        self.writes: list[str] = []
        self.dead = asyncio.Event()
        self._buried = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Pass a command on, unless the process is dead or dies of it."""
        if self.dead.is_set():
            await self._stay_dead()
        # Leases and checkpoints are written as time passes: they are no steps of a turn.
        if _name(command) in ("Renew", "checkpoint"):
            return await self._inner.submit(command)
        self.writes.append(_name(command))
        if len(self.writes) == self._dies_at:
            if self._is_committed:
                await self._inner.submit(command)
            self.dead.set()
            await self._stay_dead()
        return await self._inner.submit(command)

    async def _stay_dead(self) -> None:
        await self._buried.wait()
        raise StoreClosed("the process is dead")

    def bury(self) -> None:
        """Let the tasks of the dead process end; nothing of theirs reaches the store."""
        self.dead.set()
        self._buried.set()


def _name(command: Command[Any]) -> str:
    if isinstance(command, Extend):
        kinds = {item.kind for item in command.items}
        return "calls" if "gateway_call" in kinds else "outputs" if kinds else "checkpoint"
    return type(command).__name__


class _Process:
    """One gateway process on a shared store."""

    def __init__(self, name: str, store: Store, tools: RecordingTools, clock: ManualClock) -> None:
        lanes = LaneSettings(max_attempts=10)
        limits = lanes.limits(can_run_again=True)
        self.gateway = Gateway(
            store, clock=clock, ids=SequentialIds(name), settings=lanes, limits=limits
        )
        self.model = ScriptedModel(_script)
        executor = TurnExecutor(self.gateway, lambda _: self.model, toolbox=tools)
        self.turns = TurnService(self.gateway, executor)

    def arrival(self, *, is_stream: bool) -> tuple[Accept, TurnRequest]:
        """Return a background turn that uses the tool."""
        fields = {"tools": msgspec.Raw(msgspec.json.encode([SERVER]))}
        request = TurnRequest(
            api="responses", model="m", fields=fields, is_background=True, is_stream=is_stream
        )
        accept = Accept(
            tenant=DEFAULT_TENANT,
            turn_id=TurnId("turn_one"),
            run_id=RunId("run_one"),
            worker=self.gateway.worker.id,
            candidate_id=SessionId("ses_one"),
            key=Key("k"),
            items=(message("user", "hi"),),
            request=write_request(request),
            source="background",
            limits=self.gateway.limits,
        )
        return accept, request


def _script(items: list[Item]) -> list[Item]:
    done = sum(item["type"] == "function_call_output" for item in items)
    if done >= STEPS:
        return [said("done")]
    return [said(f"step {done}"), called("desk__echo", f"c{done}", f'{{"n":{done}}}')]


@asynccontextmanager
async def _crashed(
    dies_at: int, *, is_committed: bool, is_safe: bool, is_stream: bool
) -> AsyncIterator[tuple[_Process, DyingStore, RecordingTools]]:
    """Let a process die in a turn, and another one finish the turn."""
    clock = ManualClock()
    store = await open_store("memory:", clock=clock)
    tools = RecordingTools()
    tools.safe = {"echo"} if is_safe else set()
    dying = DyingStore(store, dies_at, is_committed=is_committed)
    first = _Process("a", dying, tools, clock)
    second = _Process("b", store, tools, clock)
    await first.gateway.start(first.turns.run_recovered)
    try:
        accept, request = first.arrival(is_stream=is_stream)
        accepting = asyncio.create_task(first.turns.accept(accept, request, is_live=True))
        ended = asyncio.create_task(_ended(first.gateway))
        dead = asyncio.create_task(dying.dead.wait())
        await asyncio.wait({ended, dead}, return_when=asyncio.FIRST_COMPLETED)
        await store.submit(ExpireWorker(worker=first.gateway.worker.id))
        await second.gateway.start(second.turns.run_recovered)
        if not ended.done():
            await second.gateway.worker.sweep()
        yield second, dying, tools
        for task in (ended, dead):
            task.cancel()
        dying.bury()
        await asyncio.gather(accepting, ended, dead, return_exceptions=True)
    finally:
        await first.turns.stop(0)
        await first.gateway.stop()
        await second.turns.stop(1)
        await second.gateway.stop()
        await store.close()


async def _ended(gateway: Gateway) -> None:
    """Wait until the turn exists and has ended."""
    while True:
        view = await gateway.read.turn(DEFAULT_TENANT, TurnId("turn_one"))
        if view is not None and view.turn.outcome is not None:
            return
        await asyncio.sleep(0)


def _outputs(items: list[Item]) -> list[str]:
    return [item["output"] for item in items if item["type"] == "function_call_output"]


async def _writes(*, is_stream: bool) -> list[str]:
    """Return the writes of a turn in which nobody dies."""
    async with _crashed(10_000, is_committed=True, is_safe=False, is_stream=is_stream) as found:
        return found[1].writes


async def test_each_step_of_a_turn_is_two_commits() -> None:
    writes = await _writes(is_stream=False)
    assert writes == ["Accept", *["calls", "outputs"] * STEPS, "Finish"]


@pytest.mark.parametrize("is_committed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_safe", [False, True], ids=["unsafe", "safe"])
@pytest.mark.parametrize("dies_at", range(2, 2 * STEPS + 3))
async def test_no_tool_runs_twice_unless_it_is_safe(
    dies_at: int, *, is_safe: bool, is_committed: bool
) -> None:
    async with _crashed(dies_at, is_committed=is_committed, is_safe=is_safe, is_stream=False) as (
        heir,
        dying,
        tools,
    ):
        await _ended(heir.gateway)
        view = await heir.gateway.read.turn(DEFAULT_TENANT, TurnId("turn_one"))
        assert view is not None
        assert view.turn.outcome == "completed"
        runs = [arguments["n"] for _, arguments in tools.calls]
        session = await heir.gateway.read.session(DEFAULT_TENANT, key=Key("k"))
        assert session is not None
        items = await heir.gateway.read.context(session.session)
        kinds = [item.kind for item in items]
        assert kinds.count("gateway_call") == kinds.count("gateway_call_output") == STEPS
        if heir.model.calls:
            shown = [msgspec.json.decode(body) for body in heir.model.calls[-1].items]
            outputs = _outputs(shown)
        else:
            outputs = [f'{{"n":{n}}}' for n in range(STEPS)]
        where = dying.writes[-1]
        is_between = (where == "calls" and is_committed) or (
            where == "outputs" and not is_committed
        )
        if is_safe:
            assert outputs == [f'{{"n":{n}}}' for n in range(STEPS)]
            assert sorted(set(runs), key=str) == list(range(STEPS))
            assert len(runs) <= STEPS + 1
        else:
            assert len(runs) == len(set(runs)), "a side effect happened twice"
            assert outputs.count(OUTCOME_UNKNOWN) == (1 if is_between else 0)
    assert isinstance(where, str)
    assert where in ("calls", "outputs", "Finish")


@pytest.mark.parametrize("is_committed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", [1, 2])
async def test_a_streamed_turn_is_finished_by_another_process(
    place: int, *, is_committed: bool
) -> None:
    async with _crashed(place + 1, is_committed=is_committed, is_safe=True, is_stream=True) as (
        heir,
        _,
        tools,
    ):
        await _ended(heir.gateway)
        view = await heir.turns.records.find(DEFAULT_TENANT, "resp_one")
        assert view is not None
        facts = await heir.turns.records.facts(view)
        events = await heir.turns.records.events(view, facts, -1)
        numbers = [event.number for event in events]
        assert numbers == list(range(len(numbers)))
        assert {arguments["n"] for _, arguments in tools.calls} == set(range(STEPS))


# ── one process after the other dies ────────────────────────────────────────────────────────


def _random_script(seed: int) -> Any:
    """Return a model that makes one or two calls a step, of a safe or an unsafe tool."""

    def script(items: list[Item]) -> list[Item]:
        step = sum(item["type"] == "message" and item["role"] == "assistant" for item in items)
        if step >= STEPS:
            return [said("done")]
        chosen = random.Random(f"{seed}:{step}")
        names = [chosen.choice(["safe", "unsafe"]) for _ in range(chosen.randint(1, 2))]
        calls = [
            called(f"desk__{name}", f"c{step}{at}", f'{{"n":{step * 10 + at}}}')
            for at, name in enumerate(names)
        ]
        return [said(f"step {step}"), *calls]

    return script


async def _begin(process: _Process, *, is_first: bool) -> None:
    """Start a process; the first one accepts the turn."""
    await process.gateway.start(process.turns.run_recovered)
    if is_first:
        accept, request = process.arrival(is_stream=False)
        await process.turns.accept(accept, request, is_live=True)


@pytest.mark.parametrize("seed", range(12))
async def test_each_unsafe_call_runs_at_most_once_whichever_process_dies(seed: int) -> None:
    chosen = random.Random(seed)
    clock = ManualClock()
    store = await open_store("memory:", clock=clock)
    tools = RecordingTools(safe=echo, unsafe=echo)
    tools.safe = {"safe"}
    processes: list[tuple[_Process, DyingStore]] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for number in range(4):
            dies_at = chosen.randint(2, 6) if number < 3 else 10_000
            dying = DyingStore(store, dies_at, is_committed=chosen.random() < 0.5)
            process = _Process(f"p{number}", dying, tools, clock)
            process.model.script = _random_script(seed)
            processes.append((process, dying))
            starting = asyncio.create_task(_begin(process, is_first=number == 0))
            tasks.append(starting)
            ended = asyncio.create_task(_ended(process.gateway))
            dead = asyncio.create_task(dying.dead.wait())
            await asyncio.wait({ended, dead}, return_when=asyncio.FIRST_COMPLETED)
            is_over = ended.done()
            for task in (ended, dead):
                task.cancel()
            if is_over:
                break
            await store.submit(ExpireWorker(worker=process.gateway.worker.id))
        view = await store.read.turn(DEFAULT_TENANT, TurnId("turn_one"))
        assert view is not None
        assert view.turn.outcome == "completed"
        unsafe = [arguments["n"] for name, arguments in tools.calls if name == "unsafe"]
        assert len(unsafe) == len(set(unsafe)), "a side effect happened twice"
        session = await store.read.session(DEFAULT_TENANT, key=Key("k"))
        assert session is not None
        items = await store.read.context(session.session)
        calls = [item.call_id for item in items if item.kind == "gateway_call"]
        outputs = [item.call_id for item in items if item.kind == "gateway_call_output"]
        assert sorted(calls, key=str) == sorted(outputs, key=str)
        assert len(calls) == len(set(calls))
    finally:
        for process, dying in processes:
            dying.bury()
            await process.turns.stop(0)
            await process.gateway.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
