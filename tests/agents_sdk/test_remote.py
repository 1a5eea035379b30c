"""A session that lives on a gateway: the same promises, in real processes, over HTTP."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agents import Runner, SQLiteSession

from holdfast import HoldfastError
from holdfast.agents_sdk import (
    Compaction,
    HoldfastRunner,
    HoldfastSession,
    RunStateUsed,
    SessionClosed,
)
from holdfast.core.errors import IdempotencyMismatch, StoreUnavailable
from tests.acceptance.gateway_process import GatewayProcess, running_gateway, sqlite_url
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls, texts_of
from tests.agents_sdk.test_compaction import summarize
from tests.agents_sdk.test_runs import (
    Bank,
    are_whole_blocks,
    cross,
    story_of_one_id_in_two_sessions,
)
from tests.agents_sdk.test_session_protocol import ODD, protocol_story, say

_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(sqlite_url(tmp_path_factory.mktemp("gateway"))) as gateway:
        yield gateway


@pytest.fixture
async def session(gateway: GatewayProcess) -> AsyncIterator[HoldfastSession]:
    async with HoldfastSession(f"agent:ünïcode:{next(_numbers)}", url=gateway.url) as session:
        yield session


async def test_it_goes_through_the_protocol_as_the_shipped_session_does(
    session: HoldfastSession, tmp_path: Path
) -> None:
    shipped = SQLiteSession("s", tmp_path / "shipped.db")
    try:
        seen = [await protocol_story(one) for one in (session, shipped)]
    finally:
        shipped.close()
    assert seen[0] == seen[1]


async def test_items_come_back_as_they_were_added(session: HoldfastSession) -> None:
    await session.add_items(ODD)
    assert await session.get_items() == ODD


async def test_a_batch_id_counts_once(session: HoldfastSession) -> None:
    for _ in range(2):
        await session.add_items(say("yes"), batch_id=f"{session.session_id}:42")
    await session.add_items(say("yes"), batch_id=f"{session.session_id}:43")
    assert await session.get_items() == say("yes", "yes")
    with pytest.raises(IdempotencyMismatch):
        await session.add_items(say("no"), batch_id=f"{session.session_id}:42")


async def test_runs_that_cross_read_back_as_whole_blocks(session: HoldfastSession) -> None:
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


async def test_a_run_of_an_id_is_run_once(session: HoldfastSession) -> None:
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
        await story_of_one_id_in_two_sessions(one, other, run_id=f"{names[0]}:1")


async def test_a_client_that_is_killed_gives_its_lane_back(gateway: GatewayProcess) -> None:
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
async def test_the_tail_of_a_cleared_run_stays_behind(
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


async def test_a_parked_run_is_resumed_once_and_stands_in_one_piece(
    session: HoldfastSession,
) -> None:
    bank = Bank(calls("pay", call_id="call_pay"), "hello", "it is paid")
    result = await HoldfastRunner.run(bank.agent, "pay", session=session)
    parked = result.to_state().to_string()
    await HoldfastRunner.run(bank.agent, "hi", session=session)
    await HoldfastRunner.run(bank.agent, await bank.resumed(parked), session=session)
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(bank.agent, await bank.resumed(parked), session=session)
    assert bank.paid == ["paid"]
    assert texts_of(await session.get_items()) == [
        "hi", "hello",
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


async def test_a_run_parked_before_a_clear_is_resumed_behind_it(session: HoldfastSession) -> None:
    bank = Bank()
    result = await HoldfastRunner.run(bank.agent, "pay", session=session)
    parked = result.to_state().to_string()
    await session.clear_session()
    await HoldfastRunner.run(bank.agent, await bank.resumed(parked), session=session)
    assert await session.get_items() == []


async def test_a_shortened_history_is_still_there(gateway: GatewayProcess) -> None:
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


async def test_a_closed_session_and_a_gateway_that_is_not_there_say_so(
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


def test_a_session_lives_in_one_place() -> None:
    for place in ({"store": "memory:", "url": "http://127.0.0.1:9"}, {}):
        with pytest.raises(HoldfastError, match="say one"):
            HoldfastSession("k", **place)  # type: ignore[arg-type] # both, or none
    with pytest.raises(HoldfastError, match="api_key"):
        HoldfastSession("k", url="http://127.0.0.1:9", tenant="other")
