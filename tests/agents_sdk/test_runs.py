"""Concurrent, crashed, cleared and twice-resumed runs, beside the SDK's own sessions."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    Session,
    SQLiteSession,
    function_tool,
)
from agents.extensions.memory import AsyncSQLiteSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

import holdfast
from holdfast.agents_sdk import HoldfastRunner, HoldfastSession, RunStateUsed
from holdfast.core.errors import IdempotencyMismatch, TurnAlreadyDone
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls, says, texts_of


@pytest.fixture(params=["SQLiteSession", "AsyncSQLiteSession", "SQLAlchemySession"])
async def sdk_session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Session]:
    """Each session that is sdk_session with the SDK and keeps its history in a database."""
    if request.param == "SQLiteSession":
        session = SQLiteSession("s", tmp_path / "sdk_session.db")
        yield session
        session.close()
    elif request.param == "AsyncSQLiteSession":
        own = AsyncSQLiteSession("s", tmp_path / "sdk_session.db")
        yield own
        await own.close()
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'sdk_session.db'}")
        yield SQLAlchemySession("s", engine=engine, create_tables=True)
        await engine.dispose()


def are_whole_blocks(texts: list[str]) -> bool:
    """Whether each question stands directly before its answer."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return all(answer == f"answer to {question}" for question, answer in pairs)


async def cross(session: Session) -> list[str]:
    """Let two runs begin, the second end first, and return what the session tells of it."""
    model = FakeModel()
    model.gates = [asyncio.Event(), asyncio.Event()]
    agent = agent_of(model)
    first = asyncio.create_task(Runner.run(agent, "A", session=session))
    await model.arrivals.get()
    second = asyncio.create_task(Runner.run(agent, "B", session=session))
    await model.arrivals.get()
    for number, run in ((1, second), (0, first)):
        model.gates[number].set()
        await run
    return texts_of(await session.get_items())


async def test_a_run_sends_malformed_arguments_of_an_earlier_one_in_an_object(
    session: HoldfastSession,
) -> None:
    call: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1'}
    output: Any = {"type": "function_call_output", "call_id": "c", "output": "cut off"}
    await session.add_items([{"role": "user", "content": "hi"}, call, output])
    model = FakeModel()
    await Runner.run(agent_of(model), "and?", session=session)
    sent: Any = model.asked[0][1]
    assert sent["arguments"] == '{"malformed_arguments":"{\\"a\\": 1"}'
    assert (await session.get_items())[1] == call


async def test_concurrent_runs_read_back_as_whole_blocks(session: HoldfastSession) -> None:
    texts = await cross(session)
    assert sorted(texts) == ["A", "B", "answer to A", "answer to B"]
    assert are_whole_blocks(texts)


async def test_the_sdks_session_interleaves_concurrent_runs(sdk_session: Session) -> None:
    assert not are_whole_blocks(await cross(sdk_session))


async def test_many_runs_with_tools_stay_whole(shared: HoldfastSession) -> None:
    @function_tool
    async def check() -> str:
        await asyncio.sleep(0)
        return "seen"

    def answer(asked: list[Any]) -> Any:
        if asked[-1].get("type") == "function_call_output":
            question = [text for text in texts_of(asked) if text.startswith("Q")][-1]
            return f"answer to {question}"
        return calls("check")

    agent = agent_of(FakeModel(answer), tools=[check])
    await asyncio.gather(*(Runner.run(agent, f"Q{n}", session=shared) for n in range(6)))
    texts = texts_of(await shared.get_items())
    assert len(texts) == 24
    for start in range(0, 24, 4):
        question, call, output, said = texts[start : start + 4]
        assert said == f"answer to {question}"
        assert (call.split()[0], output.split()[0]) == ("function_call", "function_call_output")
        assert call.split()[1] == output.split()[1]


async def test_session_objects_of_one_id_keep_runs_whole(shared_store: str) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event(), asyncio.Event()]
    agent = agent_of(model)
    async with HoldfastSession("k", shared_store) as a, HoldfastSession("k", shared_store) as b:
        first = asyncio.create_task(Runner.run(agent, "A", session=a))
        await model.arrivals.get()
        second = asyncio.create_task(Runner.run(agent, "B", session=b))
        await model.arrivals.get()
        model.gates[1].set()
        await second
        model.gates[0].set()
        await first
        assert are_whole_blocks(texts_of(await a.get_items()))


# ── one at a time ───────────────────────────────────────────────────────────────────────────


async def test_in_the_lane_the_second_run_waits_and_sees_the_first(
    session: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)

    async def run(text: str) -> None:
        async with session.serial():
            await Runner.run(agent, text, session=session)

    first = asyncio.create_task(run("A"))
    await model.arrivals.get()
    second = asyncio.create_task(run("B"))
    await asyncio.sleep(0)
    model.gates[0].set()
    await asyncio.gather(first, second)
    assert texts_of(model.asked[1]) == ["A", "answer to A", "B"]
    assert texts_of(await session.get_items()) == ["A", "answer to A", "B", "answer to B"]


async def test_the_runner_helper_takes_the_lane(session: HoldfastSession) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    runs = [asyncio.create_task(HoldfastRunner.run(agent, text, session=session)) for text in "AB"]
    await model.arrivals.get()
    model.gates[0].set()
    results = await asyncio.gather(*runs)
    assert [result.final_output for result in results] == ["answer to A", "answer to B"]
    assert texts_of(model.asked[1]) == ["A", "answer to A", "B"]


async def test_runs_without_the_lane_wait_for_the_one_that_has_it(
    shared: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    first = asyncio.create_task(HoldfastRunner.run(agent, "A", session=shared))
    await model.arrivals.get()
    second = asyncio.create_task(Runner.run(agent, "B", session=shared))
    await asyncio.sleep(0)
    model.gates[0].set()
    await asyncio.gather(first, second)
    assert texts_of(await shared.get_items()) == ["A", "answer to A", "B", "answer to B"]


async def test_a_streamed_run_holds_the_lane_until_its_block_ends(
    session: HoldfastSession,
) -> None:
    agent = agent_of(FakeModel())
    async with HoldfastRunner.streamed(agent, "A", session=session) as result:
        async for _ in result.stream_events():
            pass
    assert result.final_output == "answer to A"
    assert texts_of(await session.get_items()) == ["A", "answer to A"]


async def test_the_sdks_session_shows_a_second_run_half_of_the_first(sdk_session: Session) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    first = asyncio.create_task(Runner.run(agent, "A", session=sdk_session))
    await model.arrivals.get()
    await Runner.run(agent, "B", session=sdk_session)
    model.gates[0].set()
    await first
    assert texts_of(model.asked[1]) == ["A", "B"]


# ── once ────────────────────────────────────────────────────────────────────────────────────


async def test_a_retry_after_a_failure_does_not_duplicate_the_question(
    session: HoldfastSession,
) -> None:
    model = FakeModel([ConnectionError("gone"), "hello"])
    agent = agent_of(model)
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1")
    await HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1")
    assert texts_of(model.asked[1]) == ["hi"]
    assert texts_of(await session.get_items()) == ["hi", "hello"]


async def test_a_retry_with_the_sdks_session_duplicates_the_question(sdk_session: Session) -> None:
    model = FakeModel([ConnectionError("gone"), "hello"])
    with pytest.raises(ConnectionError):
        await Runner.run(agent_of(model), "hi", session=sdk_session)
    await Runner.run(agent_of(model), "hi", session=sdk_session)
    assert texts_of(await sdk_session.get_items()) == ["hi", "hi", "hello"]


async def test_a_retry_hides_what_the_interrupted_run_had_written(session: HoldfastSession) -> None:
    seen: list[str] = []

    @function_tool
    def check() -> str:
        seen.append("looked")
        return "seen"

    model = FakeModel([calls("check"), ConnectionError("gone"), calls("check"), "done"])
    agent = agent_of(model, tools=[check])
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1")
    await HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1")
    texts = texts_of(await session.get_items())
    assert [text.split()[0] for text in texts] == [
        "hi", "function_call", "function_call_output", "done",
    ]  # fmt: skip
    assert len(seen) == 2


async def test_a_completed_run_is_not_executed_again(session: HoldfastSession) -> None:
    model = FakeModel()
    agent = agent_of(model)
    for _ in range(2):
        result = await HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1")
        assert result.final_output == "answer to hi"
    assert len(model.asked) == 1
    assert texts_of(await session.get_items()) == ["hi", "answer to hi"]
    with pytest.raises(TurnAlreadyDone):
        async with HoldfastRunner.streamed(agent, "hi", session=session, run_id="tg:1"):
            pass


async def test_a_completed_run_returns_an_output_of_its_type(session: HoldfastSession) -> None:
    class Place(BaseModel):
        name: str
        height: int

    model = FakeModel([[says('{"name": "Zugspitze", "height": 2962}')]])
    agent = agent_of(model, output_type=Place)
    for _ in range(2):
        result = await HoldfastRunner.run(agent, "where?", session=session, run_id="tg:1")
        assert result.final_output == Place(name="Zugspitze", height=2962)


async def test_a_second_identical_input_is_a_new_run(session: HoldfastSession) -> None:
    agent = agent_of(FakeModel())
    for run_id in ("tg:1", "tg:2", None, None):
        await HoldfastRunner.run(agent, "yes", session=session, run_id=run_id)
    assert texts_of(await session.get_items()) == ["yes", "answer to yes"] * 4


async def test_a_run_id_is_bound_to_its_input(session: HoldfastSession) -> None:
    agent = agent_of(FakeModel())
    await HoldfastRunner.run(agent, "yes", session=session, run_id="tg:1")
    with pytest.raises(IdempotencyMismatch):
        await HoldfastRunner.run(agent, "no", session=session, run_id="tg:1")


async def check_one_id_in_two_sessions(
    one: HoldfastSession, other: HoldfastSession, *, run_id: str
) -> None:
    """No session sees another's result; the refused request runs under an id of its own."""
    model = FakeModel(["a secret", "hello", "bye"])
    agent = agent_of(model)
    await HoldfastRunner.run(agent, "yes", session=one, run_id=run_id)
    with pytest.raises(IdempotencyMismatch):
        await HoldfastRunner.run(agent, "yes", session=other, run_id=run_id)
    async with one.serial(run_id=f"{run_id}:by hand"):
        await Runner.run(agent, "again", session=one)
    with pytest.raises(IdempotencyMismatch):
        await other.serial(run_id=f"{run_id}:by hand").take()
    assert await other.get_items() == []
    result = await HoldfastRunner.run(agent, "yes", session=other, run_id=f"{run_id}:other")
    assert result.final_output == "bye"
    assert texts_of(await other.get_items()) == ["yes", "bye"]
    await one.clear_session()
    again = await HoldfastRunner.run(agent, "yes", session=one, run_id=run_id)
    assert again.final_output == "a secret"
    assert len(model.asked) == 3


async def test_a_run_id_of_another_session_is_refused(shared_store: str) -> None:
    async with (
        HoldfastSession("alice", shared_store) as one,
        HoldfastSession("bob", shared_store) as other,
    ):
        await check_one_id_in_two_sessions(one, other, run_id="1")


async def test_run_ids_are_separate_per_tenant(shared_store: str) -> None:
    agent = agent_of(FakeModel(["a secret", "hello"]))
    for tenant, output in (("acme", "a secret"), ("globex", "hello")):
        async with HoldfastSession("k", shared_store, tenant=tenant) as session:
            result = await HoldfastRunner.run(agent, "yes", session=session, run_id="1")
            assert result.final_output == output


async def test_a_concurrent_repeat_gets_the_first_runs_result(session: HoldfastSession) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    runs = [
        asyncio.create_task(HoldfastRunner.run(agent, "hi", session=session, run_id="tg:1"))
        for _ in range(2)
    ]
    await model.arrivals.get()
    model.gates[0].set()
    results = await asyncio.gather(*runs)
    assert [result.final_output for result in results] == ["answer to hi"] * 2
    assert len(model.asked) == 1


async def test_a_run_whose_process_was_killed_restarts_and_replaces_what_it_left(
    shared_store: str,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agents_sdk.hanging_run", shared_store, "k", "tg:1", "hi",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"asked\n"
    process.kill()
    await process.wait()
    model = FakeModel()
    async with HoldfastSession("k", shared_store) as session:
        assert texts_of(await session.get_items()) == ["hi"]
        result = await HoldfastRunner.run(agent_of(model), "hi", session=session, run_id="tg:1")
        assert result.final_output == "answer to hi"
        assert texts_of(model.asked[0]) == ["hi"]
        assert texts_of(await session.get_items()) == ["hi", "answer to hi"]


# ── cleared under a run ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("runner", [Runner, HoldfastRunner], ids=["bare", "in the lane"])
async def test_the_tail_of_a_cleared_run_stays_in_the_old_generation(
    store: str, runner: Any
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    async with holdfast.open(store) as hf:
        session = HoldfastSession("k", hf)
        run = asyncio.create_task(runner.run(agent, "A", session=session))
        await model.arrivals.get()
        await session.clear_session()
        model.gates[0].set()
        assert (await run).final_output == "answer to A"
        assert await session.get_items() == []
        await runner.run(agent, "B", session=session)
        assert texts_of(await session.get_items()) == ["B", "answer to B"]
        assert texts_of(model.asked[1]) == ["B"]
        old, new = sorted(
            await hf.sessions(key="k", generations=True), key=lambda view: view.session.generation
        )
        handle = await hf.session(id=old.session.id)
        assert texts_of(await handle.items()) == ["A", "answer to A"]
        assert new.session.previous_session_id == old.session.id


async def test_a_run_that_read_before_a_clear_writes_nothing_after_it(
    session: HoldfastSession,
) -> None:
    """The question of such a run comes after the clear, and still belongs before it."""
    agent = agent_of(FakeModel())
    cleared = False

    def merge(history: list[Any], new: list[Any]) -> Any:
        async def wait() -> list[Any]:
            nonlocal cleared
            if not cleared:
                cleared = True
                await session.clear_session()
            return history + new

        return wait()

    await Runner.run(
        agent, "A", session=session, run_config=RunConfig(session_input_callback=merge)
    )
    assert await session.get_items() == []


async def test_the_sdks_session_appends_the_tail_of_a_cleared_run(
    sdk_session: Session,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    run = asyncio.create_task(Runner.run(agent_of(model), "A", session=sdk_session))
    await model.arrivals.get()
    await sdk_session.clear_session()
    model.gates[0].set()
    await run
    assert texts_of(await sdk_session.get_items()) == ["answer to A"]


# ── interrupted for a decision ───────────────────────────────────────────────────────────────────


class PaymentAgent:
    """An agent whose tool needs approval and counts what it did."""

    def __init__(self, *answers: Any) -> None:
        self.paid: list[str] = []

        @function_tool(needs_approval=True)
        def pay() -> str:
            self.paid.append("paid")
            return "paid"

        said: list[Any] = [calls("pay", call_id="call_pay"), "it is paid"]
        self.model = FakeModel(answers or said)
        self.agent: Agent[Any] = agent_of(self.model, tools=[pay])

    async def resumed(self, interrupted: str) -> RunState[Any]:
        state = await RunState.from_string(self.agent, interrupted)
        for interruption in state.get_interruptions():
            state.approve(interruption)
        return state


async def test_an_interrupted_run_is_resumed_once(session: HoldfastSession) -> None:
    payments = PaymentAgent()
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    done = await HoldfastRunner.run(
        payments.agent, await payments.resumed(interrupted), session=session
    )
    assert done.final_output == "it is paid"
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(
            payments.agent, await payments.resumed(interrupted), session=session
        )
    assert payments.paid == ["paid"]
    assert texts_of(await session.get_items()) == [
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


async def test_one_of_two_concurrent_resumptions_is_rejected(session: HoldfastSession) -> None:
    payments = PaymentAgent()
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    copies = [await payments.resumed(interrupted) for _ in range(2)]
    outcomes = await asyncio.gather(
        *(HoldfastRunner.run(payments.agent, state, session=session) for state in copies),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["RunResult", "RunStateUsed"]
    assert payments.paid == ["paid"]


async def test_a_failed_resumption_cannot_be_retried_from_the_same_state(
    session: HoldfastSession,
) -> None:
    payments = PaymentAgent(calls("pay", call_id="call_pay"), ConnectionError("gone"))
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(
            payments.agent, await payments.resumed(interrupted), session=session
        )
    with pytest.raises(RunStateUsed):
        await HoldfastRunner.run(
            payments.agent, await payments.resumed(interrupted), session=session
        )
    assert payments.paid == ["paid"]


async def test_the_sdks_session_lets_an_interrupted_run_pay_twice(sdk_session: Session) -> None:
    payments = PaymentAgent(calls("pay", call_id="call_pay"), "it is paid", "it is paid")
    result = await Runner.run(payments.agent, "pay", session=sdk_session)
    interrupted = result.to_state().to_string()
    for _ in range(2):
        await Runner.run(payments.agent, await payments.resumed(interrupted), session=sdk_session)
    assert payments.paid == ["paid", "paid"]


async def test_a_resumed_run_stays_contiguous_after_later_items(
    session: HoldfastSession,
) -> None:
    payments = PaymentAgent(calls("pay", call_id="call_pay"), "hello", "it is paid")
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    await HoldfastRunner.run(payments.agent, "hi", session=session)
    await HoldfastRunner.run(payments.agent, await payments.resumed(interrupted), session=session)
    assert texts_of(await session.get_items()) == [
        "hi", "hello",
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


async def test_a_plain_run_resumed_in_the_same_process_stays_contiguous_too(
    session: HoldfastSession,
) -> None:
    payments = PaymentAgent(calls("pay", call_id="call_pay"), "hello", "it is paid")
    result = await Runner.run(payments.agent, "pay", session=session)
    state = result.to_state()
    state.approve(state.get_interruptions()[0])
    await Runner.run(payments.agent, "hi", session=session)
    await Runner.run(payments.agent, state, session=session)
    assert texts_of(await session.get_items()) == [
        "hi", "hello",
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


async def test_a_run_interrupted_before_a_clear_is_resumed_in_its_own_generation(
    store: str,
) -> None:
    payments = PaymentAgent()
    async with holdfast.open(store) as hf:
        session = HoldfastSession("k", hf)
        result = await HoldfastRunner.run(payments.agent, "pay", session=session)
        interrupted = result.to_state().to_string()
        await session.clear_session()
        await HoldfastRunner.run(
            payments.agent, await payments.resumed(interrupted), session=session
        )
        assert await session.get_items() == []
        old = [
            view.session
            for view in await hf.sessions(key="k", generations=True)
            if not view.session.is_live
        ]
        handle = await hf.session(id=old[0].id)
        assert texts_of(await handle.items()) == [
            "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
        ]  # fmt: skip


# ── calls that local servers number from zero ───────────────────────────────────────────────


async def ask_twice(session: Session) -> FakeModel:
    """Let an agent call a tool by one and the same call id in two runs."""

    @function_tool
    def check(at: str) -> str:
        return f"saw {at}"

    model = FakeModel(
        [
            calls("check", '{"at": "a"}', call_id="call_0"), "one",
            calls("check", '{"at": "b"}', call_id="call_0"), "two",
            "three",
        ]
    )  # fmt: skip
    agent = agent_of(model, tools=[check])
    for text in ("first", "second", "third"):
        await Runner.run(agent, text, session=session)
    return model


async def test_constant_call_ids_do_not_corrupt_the_models_input(
    session: HoldfastSession,
) -> None:
    model = await ask_twice(session)
    shown: list[Any] = model.asked[-1]
    assert [item.get("output") for item in shown if "output" in item] == ["saw a", "saw b"]
    names = [item["call_id"] for item in shown if "call_id" in item]
    assert names == ["call_0~1", "call_0~1", "call_0~2", "call_0~2"]
    stored: list[Any] = await session.get_items()
    assert [item["call_id"] for item in stored if "call_id" in item] == ["call_0"] * 4


@pytest.mark.parametrize("is_serial", [False, True], ids=["bare", "serial"])
async def test_a_call_with_an_earlier_runs_id_does_not_replace_it(
    session: HoldfastSession, is_serial: bool
) -> None:
    async with session.serial() if is_serial else contextlib.nullcontext():
        model = await ask_twice(session)
    shown: list[Any] = model.asked[3]  # the second run, once its own tool has answered
    names = [item.get("call_id") or item["role"] for item in shown]
    assert names == [
        "user", "call_0~1", "call_0~1", "assistant", "user", "call_0", "call_0",
    ]  # fmt: skip
    assert [item["arguments"] for item in shown if "arguments" in item] == [
        '{"at": "a"}', '{"at": "b"}',
    ]  # fmt: skip
    assert [item["output"] for item in shown if "output" in item] == ["saw a", "saw b"]


async def test_unique_call_ids_are_not_changed(
    session: HoldfastSession,
) -> None:
    pair: list[Any] = [
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "call_Ab12Cd34"},
        {"type": "function_call_output", "call_id": "call_Ab12Cd34", "output": "x"},
    ]
    open_call: Any = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "call_1"}
    await session.add_items([{"role": "user", "content": "a"}, *pair, open_call])
    assert (await session.get_items(wrapper=RunContextWrapper(None)))[1:] == [*pair, open_call]


async def test_constant_call_ids_make_the_sdks_session_lose_calls(sdk_session: Session) -> None:
    model = await ask_twice(sdk_session)
    shown: list[Any] = model.asked[-1]
    assert [item.get("output") for item in shown if "output" in item] == ["saw b"]
