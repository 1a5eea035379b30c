"""The log of a running gateway: what happened, with ids and without content or keys."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "a very private sentence"


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    """A simulated provider."""
    with ProviderSimulator() as simulator:
        yield simulator


def serve(
    provider: ProviderSimulator, folder: Path, *options: str, env: dict[str, str] | None = None
) -> GatewayProcess:
    gateway = GatewayProcess(
        sqlite_url(folder), "--upstream", provider.base_url, "--log-format", "json", *options,
        env={
            "HOLDFAST_UPSTREAM_KEY": "sk-private-upstream",
            "HOLDFAST_HEALS_TRANSIENT_RETRIES": "0",
            **(env or {}),
        },
    )  # fmt: skip
    gateway.start()
    return gateway


def say(gateway: GatewayProcess, text: str = SECRET, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{gateway.url}/v1/responses",
        json={"model": "gpt-4.1", "input": text},
        headers={"X-Session-Key": "k", **headers},
        timeout=60,
    )


def events_of(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """Stop the gateway and return the events it logged."""
    assert gateway.stop() == 0
    return [json.loads(line) for line in gateway.output if line.startswith("{")]


def test_each_request_is_one_line_with_its_ids(provider: ProviderSimulator, tmp_path: Path) -> None:
    gateway = serve(provider, tmp_path, "--log-level", "info")
    reply = say(gateway, **{"X-Request-Id": "client-7", "traceparent": TRACE})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "client-7"
    log = "".join(gateway.output)
    [line] = [one for one in events_of(gateway) if one["event"] == "request.served"]
    assert line["ms"] > 0
    assert {name: line[name] for name in line if name not in ("ms", "at")} == {
        "level": "info",
        "event": "request.served",
        "request_id": "client-7",
        "method": "POST",
        "route": "/v1/responses",
        "status": 200,
        "tenant": "default",
        "session_id": reply.headers["x-session-id"],
        "turn_id": reply.headers["x-turn-id"],
        "model": "gpt-4.1",
        "upstream": "upstream",
        "bytes_in": len(reply.request.content),
        "bytes_out": len(reply.content),
    }
    assert SECRET not in log
    assert "sk-private" not in log


def test_a_request_about_a_session_or_turn_is_logged_with_its_id(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, "--log-level", "info")
    reply = say(gateway)
    session, turn = reply.headers["x-session-id"], reply.headers["x-turn-id"]
    with httpx.Client(base_url=f"{gateway.url}/v1") as client:
        client.post(f"/turns/{turn}/cancel", json={})
        client.post(f"/sessions/{session}/reset", json={})
        client.get(f"/conversations/{session.replace('ses_', 'conv_')}/items")
        client.delete(f"/sessions/{session}")
        client.get("/sessions/agent:main:direct:ada%0Aforged=1")
    log = "".join(gateway.output)
    served = [one for one in events_of(gateway) if one["event"] == "request.served"]
    named = [(one["route"], one.get("session_id"), one.get("turn_id")) for one in served[1:]]
    assert named == [
        ("/v1/turns/{id}/cancel", session, turn),
        ("/v1/sessions/{id}/reset", session, None),
        ("/v1/conversations/{id}/items", session, None),
        ("/v1/sessions/{id}", session, None),
        ("/v1/sessions/{id}", None, None),
    ]
    assert "forged" not in log


def test_a_request_that_is_not_http_is_logged_with_the_id_of_its_answer(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, "--log-level", "info")
    address = httpx.URL(gateway.url)
    with socket.create_connection((address.host, address.port), timeout=60) as client:
        client.sendall(b"NONSENSE\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    [refused] = [one for one in events_of(gateway) if one["event"] == "request.refused"]
    assert (refused["status"], refused["code"]) == (400, "invalid_http")
    assert f"x-request-id: {refused['request_id']}\r\n" in reply


def test_request_id_and_trace_are_passed_upstream(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path)
    say(gateway, **{"X-Request-Id": "client-7", "traceparent": TRACE})
    generated = say(gateway, **{"X-Request-Id": "not valid (spaces)", "traceparent": "nonsense"})
    for invalid in (f"ff{TRACE[2:]}", f"00-{'0' * 32}{TRACE[35:]}", f"{TRACE[:36]}{'0' * 16}-01"):
        say(gateway, traceparent=invalid)
    assert gateway.stop() == 0
    first, second, *others = (
        dict(sent.headers) for sent in provider.requests() if sent.method == "POST"
    )
    assert (first["x-request-id"], first["traceparent"]) == ("client-7", TRACE)
    assert len(others) == 3
    assert not any("traceparent" in headers for headers in others)
    assert re.fullmatch(r"req_\w+", generated.headers["x-request-id"])
    assert second["x-request-id"] == generated.headers["x-request-id"]
    assert "traceparent" not in second


def test_an_outage_is_visible_at_the_default_level_without_the_key(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path)
    message = "we are down; your key sk-private-upstream is fine"
    provider.add_fault("error", status=503, message=message, times=1)
    assert say(gateway).status_code == 503
    log = "".join(gateway.output)
    events = {one["event"]: one for one in events_of(gateway)}
    failed = events["upstream.failed"]
    assert (failed["level"], failed["upstream"], failed["status"]) == ("warning", "upstream", 503)
    assert failed["reason"].startswith("we are down")
    assert failed["request_id"] == events["request.served"]["request_id"]
    assert events["request.served"]["level"] == "warning"
    assert "sk-private" not in log
    assert SECRET not in log


def test_a_failed_attempt_names_its_turn_and_the_providers_own_status(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path)
    provider.add_fault("error", status=401, message="Incorrect API key", times=1)
    reply = say(gateway)
    assert reply.status_code == 502
    [failed] = [one for one in events_of(gateway) if one["event"] == "upstream.failed"]
    assert (failed["status"], failed["code"]) == (401, "upstream_auth_failed")
    assert failed["session_id"] == reply.headers["x-session-id"]
    assert failed["turn_id"] == reply.headers["x-turn-id"]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_content_that_a_provider_repeats_is_not_logged(
    provider: ProviderSimulator, tmp_path: Path, api: str
) -> None:
    gateway = serve(provider, tmp_path, "--upstream-api", api)
    said = f"my number is 4711-0815\nand this is {SECRET}"
    message = f"Invalid value: {said!r}. Number 4711-0815 ... {SECRET[:20]}… is refused"
    provider.add_fault("error", status=400, message=message, code="invalid_value", times=1)
    assert say(gateway, said).json()["error"]["message"] == message
    log = "".join(gateway.output)
    [failed] = [one for one in events_of(gateway) if one["event"] == "upstream.failed"]
    assert failed["code"] == "invalid_value"
    assert failed["reason"] == (
        "Invalid value: '[content]'. Number [content] ... [content]… is refused"
    )
    for private in (SECRET, "4711-0815", "private"):
        assert private not in log


def test_a_short_message_that_a_provider_repeats_in_another_case_is_not_logged(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path)
    message = "Invalid value: CANCER, " + "x" * 263 + " your word cancer is refused"
    provider.add_fault("error", status=400, message=message, code="invalid_value", times=1)
    assert say(gateway, "cancer").status_code == 400
    [failed] = [one for one in events_of(gateway) if one["event"] == "upstream.failed"]
    assert failed["reason"] == "Invalid value: [content], " + "x" * 263 + " your word"
    assert "canc" not in "".join(gateway.output).lower()


def test_rejected_keys_and_limits_are_logged_at_the_default_level(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[[key]]\nkey_env = "ADMIN"\n[limits]\nrequests_per_minute = 1\n')
    gateway = GatewayProcess(
        sqlite_url(tmp_path), "--config", str(config), "--log-format", "json",
        env={"ADMIN": "hf_secret-key-of-an-admin"},
    )  # fmt: skip
    gateway.start()
    wrong = httpx.get(
        f"{gateway.url}/v1/sessions", headers={"authorization": "Bearer hf_wrong-one"}
    )
    good = {"authorization": "Bearer hf_secret-key-of-an-admin"}
    statuses = [httpx.get(f"{gateway.url}/v1/sessions", headers=good).status_code for _ in range(3)]
    log = "".join(gateway.output)
    events = events_of(gateway)
    assert wrong.status_code == 401
    assert 429 in statuses
    served = [one for one in events if one["event"] == "request.served"]
    assert {one["status"] for one in served} == {401, 429}
    assert {one["route"] for one in served} == {"/v1/sessions"}
    assert {one["status"]: one.get("tenant") for one in served} == {401: None, 429: "default"}
    assert "hf_" not in log


def test_a_websocket_is_logged_when_it_opens_and_closes_and_for_each_turn(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, "--log-level", "info")
    url = gateway.url.replace("http://", "ws://") + "/v1/responses"
    frame = json.dumps({"type": "response.create", "model": "gpt-4.1", "input": SECRET})
    sent, received = 0, 0
    with connect(url, additional_headers={"X-Request-Id": "client-9", "X-Session-Key": "k"}) as ws:
        for _ in range(2):
            ws.send(frame)
            sent += len(frame)
            answer = ws.recv(30)
            received += len(answer)
            while json.loads(answer)["type"] != "response.completed":
                answer = ws.recv(30)
                received += len(answer)
    log = "".join(gateway.output)
    events = events_of(gateway)
    [opened] = [one for one in events if one["event"] == "request.websocket_opened"]
    [closed] = [one for one in events if one["event"] == "request.websocket_closed"]
    turns = [one for one in events if one["event"] == "request.websocket_answered"]
    for one in (opened, closed, *turns):
        assert (one["level"], one["request_id"], one["route"], one["tenant"]) == (
            "info", "client-9", "/v1/responses", "default",
        )  # fmt: skip
    assert (closed["turns"], closed["bytes_in"], closed["bytes_out"]) == (2, sent, received)
    assert closed["code"] == 1000
    assert closed["ms"] > 0
    assert len({one["turn_id"] for one in turns}) == 2
    [session_id] = {one["session_id"] for one in turns}
    assert session_id.startswith("ses_")
    assert {(one["outcome"], one["model"], one["upstream"]) for one in turns} == {
        ("completed", "gpt-4.1", "upstream")
    }
    assert SECRET not in log


def test_a_refused_websocket_is_one_line_with_the_id_of_its_answer(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, "--log-level", "info")
    base = gateway.url.replace("http://", "ws://")
    ids = []
    for path, headers in (("/v1/nowhere", {}), ("/v1/responses", {"X-On-Busy": "maybe"})):
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(f"{base}{path}", additional_headers=headers),
        ):
            """Not reached."""
        ids.append(refused.value.response.headers["x-request-id"])
    served = [one for one in events_of(gateway) if one["event"] == "request.served"]
    assert [one["request_id"] for one in served] == ids
    assert not [line for line in gateway.output if "ASGI" in line]


def test_a_failed_turn_of_a_websocket_and_a_rejected_one_are_visible_by_default(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path)
    base = gateway.url.replace("http://", "ws://")
    provider.add_fault("error", status=503, message="we are down", times=1)
    with connect(f"{base}/v1/responses") as ws:
        ws.send(json.dumps({"type": "response.create", "model": "gpt-4.1", "input": SECRET}))
        while json.loads(ws.recv(30))["type"] not in ("error", "response.failed"):
            pass
        ws.send(json.dumps({"type": "response.create"}))
        assert json.loads(ws.recv(30))["status"] == 400
    events = events_of(gateway)
    [failed] = [one for one in events if one["event"] == "request.websocket_answered"]
    assert (failed["level"], failed["outcome"]) == ("warning", "failed")
    assert failed["bytes_in"] > 0
    assert "upstream.failed" in {one["event"] for one in events}


def test_a_failed_stream_differs_from_a_healed_one_at_the_default_level(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, env={"HOLDFAST_HEALS_TRANSIENT_RETRIES": "1"})
    ids = []
    for failures, store in ((1, True), (2, True), (2, False)):
        provider.add_fault("error", status=503, message="we are down", times=failures)
        reply = httpx.post(
            f"{gateway.url}/v1/responses",
            json={"model": "gpt-4.1", "input": SECRET, "stream": True, "store": store},
            timeout=60,
        )
        ids.append((reply.headers["x-request-id"], reply.headers.get("x-turn-id")))
    events = [one for one in events_of(gateway) if one["event"] == "turn.failed"]
    assert [(one["request_id"], one.get("turn_id")) for one in events] == ids[1:]
    assert {(one["level"], one["code"]) for one in events} == {("warning", "provider_failure")}
    assert events[0]["session_id"].startswith("ses_")


# ── stops and crashes ───────────────────────────────────────────────────────────────────────


def test_a_stop_and_the_turn_that_it_cuts_off_are_visible_at_the_default_level(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, env={"HOLDFAST_SERVER_GRACE_SECONDS": "0.1"})
    with provider.hold(when={"text": SECRET}) as barrier, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(say, gateway)
        barrier.wait_held(1)
        events = events_of(gateway)
        reply = asked.result(60)
    [cut] = [one for one in events if one["event"] == "turn.cut_off"]
    assert cut["level"] == "warning"
    assert (cut["turn_id"], cut["session_id"]) == (
        reply.headers["x-turn-id"], reply.headers["x-session-id"],
    )  # fmt: skip
    stops = [one for one in events if one["event"].startswith("serve.")]
    assert [one["event"] for one in stops] == ["serve.stopping", "serve.drained", "serve.stopped"]
    assert {one["level"] for one in stops} == {"info"}
    assert (stops[0]["signal"], stops[0]["grace_seconds"]) == ("SIGTERM", 0.1)


def test_a_collector_that_hangs_is_given_up_at_a_stop_and_logged_as_events(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        gateway = serve(provider, tmp_path, env={"HOLDFAST_OTEL_ENDPOINT": endpoint})
        assert say(gateway).status_code == 200
        events = [one["event"] for one in events_of(gateway)]
    assert "otel.not_flushed" in events
    assert events[-1] == "serve.stopped"


def test_what_the_tracing_library_says_about_a_dead_collector_is_an_event(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    gateway = serve(provider, tmp_path, env={"HOLDFAST_OTEL_ENDPOINT": "http://127.0.0.1:1"})
    assert say(gateway).status_code == 200
    assert "otel.reported" in [one["event"] for one in events_of(gateway)]
    after = "".join(gateway.output).partition("sessions are kept.\n")[2]
    assert [line for line in after.splitlines() if line and not line.startswith("{")] == []


def test_a_stop_is_not_logged_where_only_errors_are(
    provider: ProviderSimulator, tmp_path: Path
) -> None:
    assert events_of(serve(provider, tmp_path, "--log-level", "error")) == []


def test_an_area_has_a_level_of_its_own(tmp_path: Path) -> None:
    env = {"HOLDFAST_LOG_AREAS": "request=info"}
    with running_gateway(sqlite_url(tmp_path), "--log-format", "text", env=env) as gateway:
        httpx.get(f"{gateway.url}/healthz")
        assert gateway.stop() == 0
        events = [line.split()[2] for line in gateway.output if " info " in line]
    assert events == ["request.served", "serve.stopping", "serve.drained", "serve.stopped"]
