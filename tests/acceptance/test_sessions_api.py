"""Sessions and events through real processes: two gateways on one store behave as one."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.acceptance.gateway_process import GatewayProcess, running_gateway

TURN = ["turn.started", "turn.completed"]


def _say(gateway: GatewayProcess, text: str, **headers: str) -> httpx.Response:
    answer = httpx.post(
        f"{gateway.url}/v1/responses",
        json={"model": "holdfast-demo", "input": text},
        headers={"X-Session-Key": "ada", **headers},
    )
    assert answer.status_code == 200, answer.text
    return answer


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _kinds(events: Iterator[dict[str, Any]], count: int) -> list[str]:
    return [next(events)["type"] for _ in range(count)]


def test_events_of_one_process_reach_another_once(store_url: str) -> None:
    with running_gateway(store_url) as first, running_gateway(store_url) as second:
        session = _say(first, "I am Ada").headers["x-session-id"]
        own = f"{second.url}/v1/sessions/{session}/events"
        with (
            httpx.stream("GET", own) as one,
            httpx.stream("GET", f"{second.url}/v1/events") as every,
        ):
            of_one, of_all = _events(one.iter_lines()), _events(every.iter_lines())
            assert _kinds(of_one, 3) == _kinds(of_all, 3) == ["session.created", *TURN]
            _say(first, "hello")
            last = [next(of_all) for _ in range(2)][-1]
            assert _kinds(of_one, 2) == TURN
            assert last["type"] == "turn.completed"
        first.kill()
        _say(second, "who am I?")
        second.kill()
        second.start()
        rest = f"{second.url}/v1/events?after={last['id']}"
        with httpx.stream("GET", rest) as again:
            assert _kinds(_events(again.iter_lines()), 2) == TURN


def test_a_reset_through_one_process_holds_in_the_other(store_url: str) -> None:
    with running_gateway(store_url) as first, running_gateway(store_url) as second:
        old = _say(first, "I am Ada").headers["x-session-id"]
        fresh = httpx.post(
            f"{second.url}/v1/sessions/{old}/reset", json={"expected_session_id": old}
        ).json()
        assert (fresh["generation"], fresh["previous_session_id"]) == (2, old)
        answer = _say(first, "who am I?")
        assert answer.headers["x-session-id"] == fresh["id"]
        assert "Ada" not in answer.text
        late = httpx.post(f"{first.url}/v1/sessions/{old}/reset")
        assert (late.status_code, late.headers["x-session-id"]) == (409, fresh["id"])
        back = httpx.post(f"{first.url}/v1/sessions/{old}/restore").json()
        assert back["id"] == old
        assert "the first was 'I am Ada'" in _say(second, "who am I?").text
        listed = httpx.get(
            f"{second.url}/v1/sessions", params={"key": "ada", "generations": "true"}
        ).json()["data"]
        assert {one["id"]: one["status"] for one in listed} == {old: "idle", fresh["id"]: "retired"}


def test_a_process_with_followers_stops_at_once(store_url: str) -> None:
    with (
        running_gateway(store_url) as gateway,
        httpx.stream("GET", f"{gateway.url}/v1/events") as following,
    ):
        lines = following.iter_lines()
        assert next(lines) == ": keep-alive"
        assert gateway.stop() == 0
        assert [line for line in lines if line] == []
