"""Two gateways on one PostgreSQL behave as one."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import answer_text, gateway_before
from tests.postgres import Databases, PostgresServer

MODEL = "gpt-4.1"
TIMEOUT = 60
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "strict": False,
    "parameters": {"type": "object", "properties": {}},
}


class Pair(NamedTuple):
    """Two gateways, and the provider behind both."""

    one: GatewayProcess
    other: GatewayProcess
    simulator: ProviderSimulator


@pytest.fixture(name="pair", scope="module")
def _pair(
    postgres_server: PostgresServer,
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    name = databases.take()
    url = postgres_server.url(name)
    folder = tmp_path_factory.mktemp("pair")
    with (
        ProviderSimulator(seed=5) as simulator,
        gateway_before(simulator, url, folder) as one,
        gateway_before(simulator, url, folder) as other,
    ):
        yield Pair(one, other, simulator)
    databases.give_back(name)


def _post(
    gateway: GatewayProcess, text: Any, key: str | None = None, **more: Any
) -> httpx.Response:
    headers = {"X-Session-Key": key} if key is not None else {}
    headers |= more.pop("headers", {})
    body = {"model": MODEL, "input": text, **more}
    return httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=TIMEOUT)


def _client(gateway: GatewayProcess) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT
    )


def test_turns_of_one_key_may_go_to_either(pair: Pair) -> None:
    replies = [_post((pair.one, pair.other)[n % 2], f"turn {n}", "alternating") for n in range(6)]
    seen = [answer_text(reply).split(".")[0] for reply in replies]
    assert seen == [f"Messages seen: {n}" for n in (1, 3, 5, 7, 9, 11)]
    assert len({reply.headers["x-session-id"] for reply in replies}) == 1


def test_turns_of_one_key_that_come_to_both_at_once_are_serial(pair: Pair) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(
            pool.map(lambda n: _post((pair.one, pair.other)[n % 2], f"t{n}", "rush"), range(8))
        )
    seen = sorted(int(answer_text(reply).split(".")[0].split(": ")[1]) for reply in replies)
    assert seen == [1, 3, 5, 7, 9, 11, 13, 15]


def test_an_answer_of_one_is_read_continued_and_deleted_at_the_other(pair: Pair) -> None:
    with _client(pair.one) as one, _client(pair.other) as other:
        first = one.responses.create(model=MODEL, input="one")
        assert other.responses.retrieve(first.id) == first
        child = other.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        assert child.output_text.startswith("Messages seen: 3")
        made = other.conversations.create()
        one.conversations.items.create(made.id, items=[{"role": "user", "content": "a"}])
        other.conversations.items.create(made.id, items=[{"role": "user", "content": "b"}])
        said = one.responses.create(model=MODEL, input="c", conversation=made.id)
        assert said.output_text.startswith("Messages seen: 3")
        other.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            one.responses.retrieve(first.id)


@pytest.mark.parametrize("is_background", [False, True])
def test_a_stream_of_one_gateway_is_resumed_at_another(pair: Pair, is_background: bool) -> None:
    text = f"tell it to both {is_background}"
    with (
        pair.simulator.hold(at="event", event=6, when={"text": text}) as barrier,
        _client(pair.one) as one,
        _client(pair.other) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = one.responses.create(
            model=MODEL, input=text, stream=True, background=is_background
        )
        told = [next(iter(stream))]
        created = told[0]
        assert created.type == "response.created"
        barrier.wait_held(1)
        name = created.response.id
        resumed = pool.submit(
            lambda: list(other.responses.retrieve(name, stream=True, starting_after=0))
        )
        barrier.release()
        told += list(stream)
        assert told[-1].type == "response.completed"
        assert resumed.result(TIMEOUT) == told[1:]


def test_a_run_of_one_is_cancelled_at_the_other(pair: Pair) -> None:
    with (
        pair.simulator.hold(when={"text": "stop me"}) as barrier,
        _client(pair.one) as one,
        _client(pair.other) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        begun = one.responses.create(model=MODEL, input="stop me", background=True)
        barrier.wait_held(1)
        reading = pool.submit(lambda: list(one.responses.retrieve(begun.id, stream=True)))
        assert other.responses.cancel(begun.id).status == "cancelled"
        assert reading.result(TIMEOUT)[-1].type == "response.incomplete"
        assert one.responses.retrieve(begun.id).status == "cancelled"


def test_a_turn_that_cuts_in_at_one_ends_the_run_of_the_other(pair: Pair) -> None:
    with (
        pair.simulator.hold(when={"text": "slowly"}, times=1) as barrier,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(_post, pair.one, "slowly", "cut")
        barrier.wait_held(1)
        said = _post(pair.other, "quickly", "cut", headers={"X-On-Busy": "rollback"})
        assert answer_text(said).startswith("Messages seen: 1")
        stopped = waiting.result(TIMEOUT)
        assert stopped.status_code == 409
        assert stopped.json()["error"]["code"] == "turn_cancelled"
        assert stopped.headers["x-should-retry"] == "false"


def test_a_busy_lane_is_busy_at_both(pair: Pair) -> None:
    with (
        pair.simulator.hold(when={"text": "busy"}, times=1) as barrier,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(_post, pair.one, "busy", "lane")
        barrier.wait_held(1)
        refused = _post(pair.other, "me too", "lane", headers={"X-On-Busy": "reject"})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "session_busy"
        assert refused.headers["retry-after"]
        barrier.release()
        assert waiting.result(TIMEOUT).status_code == 200


def test_a_repeat_at_the_other_is_the_same_turn(pair: Pair) -> None:
    headers = {"Idempotency-Key": "once-for-both"}
    with (
        pair.simulator.hold(when={"text": "only once"}) as barrier,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(_post, pair.one, "only once", "once", headers=headers)
        barrier.wait_held(1)
        second = pool.submit(_post, pair.other, "only once", "once", headers=headers)
        barrier.release()
        assert first.result(TIMEOUT).json() == second.result(TIMEOUT).json()
    later = _post(pair.other, "only once", "once", headers=headers)
    assert later.json() == first.result().json()
    assert len(pair.simulator.requests(text="only once")) == 1
    mismatch = _post(pair.other, "something else", "once", headers=headers)
    assert mismatch.status_code == 422


def test_tools_of_a_turn_at_one_are_answered_at_the_other(pair: Pair) -> None:
    asked = _post(pair.one, "call look {}", "tools", tools=[TOOL])
    call = next(item for item in asked.json()["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a cat"}
    said = _post(pair.other, [output], "tools", tools=[TOOL])
    assert "Last text: a cat" in answer_text(said)
    assert said.headers["x-turn-id"] == asked.headers["x-turn-id"]


def _events(gateway: GatewayProcess, path: str, last_turn: str) -> list[dict[str, Any]]:
    """Return the facts of a feed up to the end of a turn."""
    found: list[dict[str, Any]] = []
    with httpx.stream("GET", gateway.url + path, timeout=TIMEOUT) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
                if (found[-1]["type"], found[-1]["turn_id"]) == ("turn.completed", last_turn):
                    break
    return found


def test_the_feed_of_each_has_the_facts_of_both(pair: Pair) -> None:
    replies = [_post((pair.one, pair.other)[n % 2], f"f{n}", "feed") for n in range(4)]
    session = replies[0].headers["x-session-id"]
    path = f"/v1/sessions/{session}/events?after=0"
    # A session is made, and each turn begins and ends.
    last = replies[-1].headers["x-turn-id"]
    told = _events(pair.one, path, last)
    assert len(told) == 9
    assert told == _events(pair.other, path, last)
    begun = [fact["turn_id"] for fact in told if fact["type"] == "turn.started"]
    assert begun == [reply.headers["x-turn-id"] for reply in replies]
    everything = [_events(gateway, "/v1/events?after=0", last) for gateway in pair[:2]]
    assert everything[0] == everything[1]


def test_the_other_finishes_what_a_killed_one_had_begun(pair: Pair) -> None:
    with pair.simulator.hold(when={"text": "job"}) as barrier, _client(pair.one) as one:
        begun = [
            one.responses.create(
                model=MODEL,
                input=f"job {n}",
                background=True,
                extra_headers={"X-Session-Key": f"jobs-{n % 2}"},
            )
            for n in range(4)
        ]
        barrier.wait_held(2)
        pair.one.kill()
    try:
        with _client(pair.other) as other:
            for response in begun:
                events = list(other.responses.retrieve(response.id, stream=True))
                assert [event.sequence_number for event in events] == list(range(len(events)))
                assert events[-1].type == "response.completed"
            for key in ("jobs-0", "jobs-1"):
                assert answer_text(_post(pair.other, "and?", key)).startswith("Messages seen: 5")
    finally:
        pair.one.start()


def _erase(gateway: GatewayProcess, session: str, role: str) -> None:
    """Erase the first item with a role."""
    path = f"{gateway.url}/v1/sessions/{session}/items"
    listed = httpx.get(path, timeout=TIMEOUT).json()["data"]
    name = next(item["id"] for item in listed if item.get("role") == role)
    path = f"{gateway.url}/v1/conversations/{session.replace('ses_', 'conv_')}/items/{name}"
    assert httpx.delete(path, params={"erase": "true"}, timeout=TIMEOUT).status_code == 200


def test_what_was_erased_at_one_is_in_no_earlier_view_of_the_other(pair: Pair) -> None:
    told = [{"role": "user", "content": text} for text in ("xyzzy", "hello")]
    first = _post(pair.one, told, "past")
    second = _post(pair.other, "and now?", "past")
    _erase(pair.other, first.headers["x-session-id"], "user")
    path = f"{pair.one.url}/v1/turns/{second.headers['x-turn-id']}/projection"
    shown = httpx.get(path, timeout=TIMEOUT)
    assert "and now?" in shown.text
    assert "xyzzy" not in shown.text
    parent = second.json()["id"]
    _post(pair.one, "go on from there", previous_response_id=parent, store=False)
    (sent,) = pair.simulator.requests(text="go on from there")
    assert "and now?" in str(sent)
    assert "xyzzy" not in str(sent)


def test_an_answer_erased_at_one_is_not_streamed_again_by_the_other(pair: Pair) -> None:
    told = _post(pair.one, "plugh", "erased-stream", stream=True)
    assert "Last text: plugh" in told.text
    path = f"{pair.one.url}/v1/responses/{told.headers['x-turn-id'].replace('turn_', 'resp_')}"
    again = httpx.get(path, params={"stream": "true"}, timeout=TIMEOUT)
    assert again.text == told.text
    _erase(pair.other, told.headers["x-session-id"], "assistant")
    again = httpx.get(path, params={"stream": "true"}, timeout=TIMEOUT)
    assert "response.completed" in again.text
    assert "Last text: plugh" not in again.text


def test_a_stream_that_failed_at_one_is_repeated_as_it_ended_at_the_other(pair: Pair) -> None:
    headers = {"X-Session-Key": "again", "Idempotency-Key": "again-for-both"}

    def told_by(gateway: GatewayProcess) -> list[Any]:
        with _client(gateway) as client:
            return list(
                client.responses.create(
                    model=MODEL, input="fail once", stream=True, extra_headers=headers
                )
            )

    pair.simulator.add_fault("cut", event=7, ending="reset", times=1, when={"text": "fail once"})
    assert told_by(pair.one)[-1].type == "response.failed"
    ended = told_by(pair.other)[-1]
    assert ended.type == "response.completed"
    again = told_by(pair.one)[-1]
    assert again.type == "response.completed"
    assert again.response == ended.response
