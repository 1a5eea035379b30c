"""Turns that the clock begins, over real processes."""

from pathlib import Path
from typing import Any

import httpx

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.channel_stories import telegram_story
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import MODEL, HttpUser, gateway_before
from tests.store_urls import sqlite_url


def _schedule(user: HttpUser, **values: Any) -> None:
    body = {"name": "report", "prompt": "what is new?", "model": MODEL, **values}
    reply = user.post("/v1/schedules", body)
    assert reply.status_code == 200, reply.text


def _until_ended(user: HttpUser, count: int) -> list[dict[str, Any]]:
    """Wait until so many runs of the schedule have ended."""
    while True:
        runs: list[dict[str, Any]] = user.get("/v1/schedules/report")["runs"]
        if sum(bool(run["outcome"]) for run in runs) >= count:
            return runs


def _count_turns(gateway: GatewayProcess) -> float:
    """Return how many turns have ended."""
    metrics = httpx.get(f"{gateway.url}/metrics").text.splitlines()
    ended = [line for line in metrics if line.startswith("holdfast_turns_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in ended)


def test_an_isolated_run_is_healed_delivered_and_can_be_answered_with_yes(
    store_url: str, tmp_path: Path
) -> None:
    with telegram_story(store_url, tmp_path) as (telegram, provider, gateway):
        user = HttpUser(gateway)
        telegram.say("hello")
        telegram.wait_for_text("Messages seen: 1")
        provider.add_fault("R02", times=1)
        _schedule(user, every="1h", deliver={"channel": "support", "to": "7"})
        assert user.post("/v1/schedules/report/run").status_code == 200
        telegram.wait_for_text("Last text: what is new?")
        (run,) = _until_ended(user, 1)
        assert run["outcome"] == "completed"
        telegram.say("yes")
        telegram.wait_for_text("Messages seen: 4")
        shown = str(provider.requests()[-1].body["input"])
        assert "yes" in shown
        listed = user.get("/v1/sessions")["data"]
        keys = sorted(session["key"] for session in listed)
        assert keys[0] == "agent:main:telegram:direct:7"
        assert keys[1].startswith("cron:report:")
        assert sorted(session["source"] for session in listed) == ["channel", "cron"]
        # Turns of the channel and of the schedule count like those of requests. The last one may
        # be shown before it has ended.
        while _count_turns(gateway) < 3:
            pass
        metrics = httpx.get(f"{gateway.url}/metrics").text.splitlines()
        assert any(line.startswith("holdfast_outbox_oldest_seconds ") for line in metrics)


def test_a_provider_that_forgets_between_the_tool_steps_of_a_cron_run_is_healed(
    tmp_path: Path,
) -> None:
    chain = 'state = "chain"'
    with (
        ProviderSimulator() as provider,
        gateway_before(provider, sqlite_url(tmp_path), tmp_path, upstream=chain) as gateway,
    ):
        user = HttpUser(gateway)
        provider.add_fault("R01", times=1, when={"nth": 2})
        prompt = "call session_status {} and report"
        _schedule(user, every="1h", prompt=prompt, tools=["session_status"])
        for count in (1, 2):
            assert user.post("/v1/schedules/report/run").status_code == 200
            runs = _until_ended(user, count)
        assert [run["outcome"] for run in runs] == ["completed"] * 2
        keys = {session["key"] for session in user.get("/v1/sessions")["data"]}
        assert len(keys) == 2, "each run has a session of its own"
        first = min(runs, key=lambda run: run["scheduled_at"])
        turn = user.get(f"/v1/turns/{first['turn_id']}")
        assert [heal["failure_class"] for heal in turn["runs"][-1]["heals"]] == ["stale_state"]
        asked = [request.body for request in provider.requests()]
        assert asked[1]["previous_response_id"], "the provider's memory of the first step was used"
        assert "function_call_output" in str(asked[2]["input"]), "the tool did not run twice"
        assert len(asked) == 5


def test_a_model_that_no_upstream_serves_is_rejected(tmp_path: Path) -> None:
    """Otherwise a daily schedule does nothing for five days, until it is paused."""
    served = f'models = ["{MODEL}"]'
    with (
        ProviderSimulator() as provider,
        gateway_before(provider, sqlite_url(tmp_path), tmp_path, upstream=served) as gateway,
    ):
        user = HttpUser(gateway)
        _schedule(user, every="1h")
        for wrong in ("no-such-model", ""):
            body = {"name": "typo", "prompt": "x", "every": "1h", "model": wrong}
            reply = user.post("/v1/schedules", body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
        assert [one["name"] for one in user.get("/v1/schedules")["data"]] == ["report"]


def test_a_target_that_never_wrote_and_a_reserved_key_are_rejected(
    store_url: str, tmp_path: Path
) -> None:
    with telegram_story(store_url, tmp_path) as (_, _provider, gateway):
        user = HttpUser(gateway)
        body = {
            "name": "r",
            "prompt": "x",
            "every": "1h",
            "deliver": {"channel": "support", "to": "9"},
        }
        assert user.post("/v1/schedules", body).status_code == 400
        deliver = {"channel": "support", "to": "9\0"}
        assert user.post("/v1/schedules", {**body, "deliver": deliver}).status_code == 400
        known = {"channel": "support", "to": "9"}
        for wrong, param in (
            ({"deliver": {**known, "chanel": "x"}}, "deliver.chanel"),
            ({"deliver": {"channel": "support"}}, "deliver"),
            ({"deliver": {**known, "to": 9}}, "deliver.to"),
            ({"deliver": None, "tools": ["session_status", "nothing"]}, "tools[1]"),
            ({"deliver": None, "tools": ["mcp:nobody"]}, "tools[0]"),
            ({"deliver": None, "tools": [{"type": "mcp"}]}, "tools[0]"),
            ({"deliver": None, "promt": "y"}, "promt"),
        ):
            reply = user.post("/v1/schedules", {**body, **wrong})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        reply = httpx.post(
            f"{gateway.url}/v1/schedules",
            content=b'{"name":"r","prompt":"x","every":1e999}',
            headers={"content-type": "application/json"},
        )
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "every")
        message = {"to": "9", "text": "x", "txt": "y"}
        reply = user.post("/v1/channels/support/messages", message)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "txt")
        for path in ("a%00b/run", "a%00b/pause"):
            assert user.post(f"/v1/schedules/{path}").status_code == 404
        del body["deliver"]
        for name in ("a", "b", "c"):
            assert user.post("/v1/schedules", {**body, "name": name}).status_code == 200
        first = user.get("/v1/schedules?limit=2")
        assert ([one["name"] for one in first["data"]], first["has_more"]) == (["a", "b"], True)
        rest = user.get(f"/v1/schedules?limit=2&after={first['last_id']}")
        assert ([one["name"] for one in rest["data"]], rest["has_more"]) == (["c"], False)
        reply = httpx.get(f"{gateway.url}/v1/schedules?after=nobody")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unknown_cursor")
        reply = user.say("cron:report:now", "hello")
        assert reply.json()["error"]["code"] == "invalid_session_key"


def test_a_schedule_that_cannot_run_now_is_a_conflict(tmp_path: Path) -> None:
    with (
        ProviderSimulator() as provider,
        gateway_before(provider, sqlite_url(tmp_path), tmp_path) as gateway,
    ):
        user = HttpUser(gateway)
        _schedule(user, every="1h")
        assert user.post("/v1/schedules/report/pause").status_code == 200
        reply = user.post("/v1/schedules/report/run")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "schedule_busy")
        assert "resume it first" in reply.json()["error"]["message"]
