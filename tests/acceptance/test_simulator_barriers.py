"""Barriers, connection faults and late successes, with real clients and without sleeps."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator, SimulatorError

BODY = {"model": "gpt-4.1", "input": "hello"}
IMPATIENT = httpx.Timeout(60, read=0.1)


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=7) as running:
        yield running


@pytest.fixture(name="http")
def _http(simulator: ProviderSimulator) -> Iterator[httpx.Client]:
    headers = {"authorization": "Bearer sk-a"}
    with httpx.Client(base_url=simulator.base_url, headers=headers, timeout=60) as client:
        yield client


def test_a_barrier_holds_counts_and_releases_calls_one_by_one(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    with simulator.hold() as barrier, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(http.post, "/responses", json=BODY) for _ in range(3)]
        barrier.wait_held(3)
        assert barrier.held == 3
        assert barrier.release(1) == 1
        assert barrier.held == 2
        assert barrier.release() == 2
        assert [call.result().status_code for call in calls] == [200, 200, 200]


def test_a_barrier_holds_only_matching_calls(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    with (
        simulator.hold(when={"text": "second", "header": {"x-who": "me*"}}) as barrier,
        ThreadPoolExecutor(1) as pool,
    ):
        assert http.post("/responses", json=BODY).status_code == 200
        body = BODY | {"input": "the second one"}
        assert http.post("/responses", json=body).status_code == 200
        held = pool.submit(http.post, "/responses", json=body, headers={"x-who": "me too"})
        barrier.wait_held(1)
        barrier.release()
        assert held.result().status_code == 200


def test_a_barrier_can_hold_the_nth_call_alone(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    with simulator.hold(when={"nth": 2}) as barrier, ThreadPoolExecutor(1) as pool:
        http.post("/responses", json=BODY)
        held = pool.submit(http.post, "/responses", json=BODY)
        barrier.wait_held(1)
        http.post("/responses", json=BODY)
        assert barrier.held == 1
        barrier.release()
        held.result()


def test_waiting_for_missing_calls_ends_with_a_clear_error(
    simulator: ProviderSimulator,
) -> None:
    with simulator.hold() as barrier, pytest.raises(SimulatorError, match="holds 0 calls, not 1"):
        barrier.wait_held(1, wait_seconds=0.05)


async def test_a_coroutine_waits_for_held_calls_without_blocking_its_loop(
    simulator: ProviderSimulator,
) -> None:
    async with openai.AsyncOpenAI(base_url=simulator.base_url, api_key="k") as client:
        with simulator.hold() as barrier:
            call = asyncio.create_task(client.responses.create(model="gpt-4.1", input="hi"))
            await barrier.wait_held_async(1)
            assert not call.done()
            await barrier.release_async()
            assert (await call).output_text == "Messages seen: 1. Last text: hi"


def test_a_stream_is_held_after_a_given_event(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    with (
        simulator.hold(at="event", event=3) as barrier,
        http.stream("POST", "/responses", json=BODY | {"stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        seen = [line for line in (next(lines) for _ in range(9)) if line.startswith("event")]
        assert len(seen) == 3
        barrier.wait_held(1)
        barrier.release()
        assert "data: [DONE]" in list(lines)


def test_a_running_call_locks_its_conversation(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    body = BODY | {"conversation": conversation}
    first_create = {"nth": 1, "operation": "create", "api": "responses"}
    with simulator.hold(when=first_create) as barrier, ThreadPoolExecutor(1) as pool:
        first = pool.submit(http.post, "/responses", json=body)
        barrier.wait_held(1)
        second = http.post("/responses", json=body)
        assert second.status_code == 400
        assert second.json()["error"]["code"] == "conversation_locked"
        barrier.release()
        assert first.result().status_code == 200
    assert http.post("/responses", json=body).status_code == 200


def test_a_held_call_succeeds_after_its_client_gave_up(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    with simulator.hold(when={"api": "responses"}) as barrier:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/responses", json=BODY | {"conversation": conversation}, timeout=IMPATIENT)
        barrier.wait_held(1)
        barrier.release()
    items = http.get(f"/conversations/{conversation}/items").json()["data"]
    assert [item["role"] for item in items] == ["assistant", "user"]


def test_a_late_answer_waits_after_its_work_is_stored(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("late", times=1)
    with simulator.hold(at="answer") as barrier, ThreadPoolExecutor(1) as pool:
        call = pool.submit(http.post, "/responses", json=BODY)
        while not any(kept["responses"] for kept in simulator.state()["accounts"].values()):
            assert not call.done()
        assert barrier.held == 0
        simulator.release_all()
        assert call.result().status_code == 200


def test_a_late_success_is_stored_and_never_sent(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("late", times=1)
    with simulator.hold(at="answer") as barrier:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/responses", json=BODY, timeout=IMPATIENT)
        barrier.wait_held(1)  # it wanted to answer only after the client had gone
        barrier.release()
    (request,) = simulator.requests(api="responses")
    assert request.answer_id is not None
    assert http.get(f"/responses/{request.answer_id}").json()["status"] == "completed"


def test_a_lost_answer_keeps_its_effect(simulator: ProviderSimulator, http: httpx.Client) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    simulator.add_fault("drop", stored=True, when={"operation": "create_items"}, times=1)
    path = f"/conversations/{conversation}/items"
    with pytest.raises(httpx.TransportError):
        http.post(path, json={"items": [{"role": "user", "content": "once"}]})
    assert len(http.get(path).json()["data"]) == 1


@pytest.mark.parametrize("ending", ["eof", "reset"])
def test_a_connection_is_dropped_before_any_answer(
    simulator: ProviderSimulator, http: httpx.Client, ending: str
) -> None:
    simulator.add_fault("drop", ending=ending, times=1)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        http.post("/responses", json=BODY)
    assert simulator.state()["accounts"]["sk-a"]["responses"] == 0
    assert http.post("/responses", json=BODY).status_code == 200


def test_a_hanging_call_sends_nothing_until_it_is_released(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("hang", times=1)
    with pytest.raises(httpx.ReadTimeout):
        http.post("/responses", json=BODY, timeout=IMPATIENT)
    simulator.add_fault("hang", times=1, event=2)
    with http.stream("POST", "/responses", json=BODY | {"stream": True}) as answer:
        lines = answer.iter_lines()
        seen = [line for line in (next(lines) for _ in range(6)) if line.startswith("event")]
        (request,) = simulator.requests(stream="true")
        assert len(seen) == request.events_sent == 2
        simulator.release_all()
        assert "data: [DONE]" in list(lines)


def test_refused_connections_are_reset(simulator: ProviderSimulator) -> None:
    simulator.refuse_connections(2)
    for _ in range(2):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{simulator.base_url}/models")
    assert httpx.get(simulator.url).status_code == 200


def test_a_closed_listener_refuses_connections_until_it_is_opened(
    simulator: ProviderSimulator,
) -> None:
    simulator.shut()
    with pytest.raises(httpx.ConnectError):
        httpx.get(simulator.url)
    simulator.open()
    assert httpx.get(simulator.url).status_code == 200


def test_a_closed_listener_reopens_after_a_given_time(simulator: ProviderSimulator) -> None:
    simulator.shut(0.0)
    deadline = threading.Event()
    while not deadline.wait(0.01):
        try:
            assert httpx.get(simulator.url).status_code == 200
            break
        except httpx.ConnectError:
            continue


def test_stopping_releases_held_calls_and_leaves_no_thread() -> None:
    with ProviderSimulator() as simulator:
        barrier = simulator.hold()
        pool = ThreadPoolExecutor(1)
        call = pool.submit(
            httpx.post,
            f"{simulator.base_url}/responses",
            json=BODY,
            headers={"authorization": "Bearer k"},
        )
        barrier.wait_held(1)
    assert call.result().status_code == 200
    pool.shutdown()
    assert "provider-simulator" not in {thread.name for thread in threading.enumerate()}
