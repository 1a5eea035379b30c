"""Sessions on a gateway keep the same promises, in real processes over HTTP."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agents import Runner

from holdfast import HoldfastError
from holdfast.agents_sdk import (
    Compaction,
    HoldfastRunner,
    HoldfastSession,
    RunStateUsed,
    SessionClosed,
)
from holdfast.core.errors import IdempotencyMismatch, StoreUnavailable
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls, texts_of
from tests.agents_sdk.test_compaction import summarize
from tests.agents_sdk.test_runs import (
    PaymentAgent,
    are_whole_blocks,
    check_one_id_in_two_sessions,
    cross,
)
from tests.agents_sdk.test_session_protocol import ODD, compare_with_sdk_session, say
from tests.store_urls import sqlite_url

_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(sqlite_url(tmp_path_factory.mktemp("gateway"))) as gateway:
        yield gateway


@pytest.fixture
async def session(gateway: GatewayProcess) -> AsyncIterator[HoldfastSession]:
    async with HoldfastSession(f"agent:ünïcode:{next(_numbers)}", url=gateway.url) as session:
        yield session


async def test_the_protocol_behaves_as_in_the_sdks_session(
    session: HoldfastSession, tmp_path: Path
) -> None:
    await compare_with_sdk_session(session, tmp_path)


async def test_items_come_back_as_they_were_added(session: HoldfastSession) -> None:
    await session.add_items(ODD)
    assert await session.get_items() == ODD


async def test_a_batch_id_is_stored_once(session: HoldfastSession) -> None:
    for _ in range(2):
        await session.add_items(say("yes"), batch_id=f"{session.session_id}:42")
    await session.add_items(say("yes"), batch_id=f"{session.session_id}:43")
    assert await session.get_items() == say("yes", "yes")
    with pytest.raises(IdempotencyMismatch):
        await session.add_items(say("no"), batch_id=f"{session.session_id}:42")


async def test_concurrent_runs_read_back_as_whole_blocks(session: HoldfastSession) -> None:
    assert are_whole_blocks(await cross(session))


async def test_in_the_lane_the_second_run_waits_and_sees_the_first(
    session: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    agent = agent_of(model)
    first = asyncio.create_task(HoldfastRunner.run(agent, "A", session=session))
    await model.arrivals.get()
    second = asyncio.create_task(HoldfastRunner.run(agent, "B", session=session))
    await asyncio.sleep(0)
    model.gates[0].set()
    await asyncio.gather(first, second)
    assert texts_of(model.asked[1]) == ["A", "answer to A", "B"]
    assert texts_of(await session.get_items()) == ["A", "answer to A", "B", "answer to B"]


async def test_a_run_id_runs_once(session: HoldfastSession) -> None:
    model = FakeModel([ConnectionError("gone"), "hello"])
    agent, run_id = agent_of(model), f"{session.session_id}:1"
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(agent, "hi", session=session, run_id=run_id)
    for _ in range(2):
        result = await HoldfastRunner.run(agent, "hi", session=session, run_id=run_id)
        assert result.final_output == "hello"
    assert texts_of(model.asked[1]) == ["hi"]
    assert texts_of(await session.get_items()) == ["hi", "hello"]


async def test_a_run_id_of_another_session_is_refused(gateway: GatewayProcess) -> None:
    names = [f"{who}:{next(_numbers)}" for who in ("alice", "bob")]
    async with (
        HoldfastSession(names[0], url=gateway.url) as one,
        HoldfastSession(names[1], url=gateway.url) as other,
    ):
        await check_one_id_in_two_sessions(one, other, run_id=f"{names[0]}:1")


async def test_a_killed_client_releases_its_lane(gateway: GatewayProcess) -> None:
    key = f"killed:{next(_numbers)}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agents_sdk.hanging_run", gateway.url, key, f"{key}:1", "hi",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"asked\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    model = FakeModel()
    async with HoldfastSession(key, url=gateway.url) as session:
        await HoldfastRunner.run(agent_of(model), "hi", session=session, run_id=f"{key}:1")
        assert texts_of(model.asked[0]) == ["hi"]
        assert texts_of(await session.get_items()) == ["hi", "answer to hi"]


@pytest.mark.parametrize("runner", [Runner, HoldfastRunner], ids=["bare", "in the lane"])
async def test_the_tail_of_a_cleared_run_stays_in_the_old_generation(
    session: HoldfastSession, runner: type[Runner]
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    run = asyncio.create_task(runner.run(agent_of(model), "A", session=session))
    await model.arrivals.get()
    await session.clear_session()
    model.gates[0].set()
    assert (await run).final_output == "answer to A"
    assert await session.get_items() == []


async def test_an_interrupted_run_is_resumed_once_and_stays_contiguous(
    session: HoldfastSession,
) -> None:
    payments = PaymentAgent(calls("pay", call_id="call_pay"), "hello", "it is paid")
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    await HoldfastRunner.run(payments.agent, "hi", session=session)
    await HoldfastRunner.run(payments.agent, await payments.resumed(interrupted), session=session)
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(
            payments.agent, await payments.resumed(interrupted), session=session
        )
    assert payments.paid == ["paid"]
    assert texts_of(await session.get_items()) == [
        "hi", "hello",
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


async def test_a_run_interrupted_before_a_clear_is_resumed_after_it(
    session: HoldfastSession,
) -> None:
    payments = PaymentAgent()
    result = await HoldfastRunner.run(payments.agent, "pay", session=session)
    interrupted = result.to_state().to_string()
    await session.clear_session()
    await HoldfastRunner.run(payments.agent, await payments.resumed(interrupted), session=session)
    assert await session.get_items() == []


async def test_a_compacted_history_is_still_in_the_log(gateway: GatewayProcess) -> None:
    compaction = Compaction(shorten=summarize, after_items=4)
    key = f"compacted:{next(_numbers)}"
    async with HoldfastSession(key, url=gateway.url, compaction=compaction) as session:
        agent = agent_of(FakeModel())
        for text in "ab":
            await HoldfastRunner.run(agent, text, session=session)
        assert texts_of(await session.get_items()) == ["summary of 4"]
        assert texts_of(await session.history()) == [
            "a", "answer to a", "b", "answer to b", "summary of 4",
        ]  # fmt: skip


async def test_a_closed_session_and_an_unreachable_gateway_raise(
    gateway: GatewayProcess,
) -> None:
    session = HoldfastSession("k", url=gateway.url)
    await session.get_items()
    await session.close()
    with pytest.raises(SessionClosed):
        await session.get_items()
    async with HoldfastSession("k", url="http://127.0.0.1:9") as nowhere:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await nowhere.get_items()


def test_a_session_takes_either_a_store_or_a_url() -> None:
    for location in ({"store": "memory:", "url": "http://127.0.0.1:9"}, {}):
        with pytest.raises(HoldfastError, match="either `store`"):
            HoldfastSession("k", **location)  # type: ignore[arg-type] # both, or none
    with pytest.raises(HoldfastError, match="api_key"):
        HoldfastSession("k", url="http://127.0.0.1:9", tenant="other")
