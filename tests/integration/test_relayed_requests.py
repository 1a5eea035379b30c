"""Requests that are forwarded unchanged are seen like others: log, metrics and traces."""

import logging
from typing import Any

import pytest

from holdfast.engine.logging import ROOT as LOGGER
from holdfast.testing.simulator.process import ProviderSimulator
from tests.integration.test_traces import attributes, provider, traced_gateway
from tests.integration.upstream_gateway import open_upstream_gateway, upstream

__all__ = ["provider"]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def _events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.msg == name]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/embeddings", {"input": "hi"})],
)
async def test_a_failed_relay_is_logged_and_counted(
    path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with ProviderSimulator() as simulator:
        simulator.add_fault("error", status=500, message="the disk is bad")
        behind = upstream(simulator, api="chat", name="one")
        async with open_upstream_gateway(behind) as gateway:
            assert (await gateway.post(path, None, **body)).status_code in (404, 500)
            counted = (await gateway.client.get("/metrics")).text
    [failed] = _events(caplog, "upstream.failed")
    assert (failed["upstream"], failed["path"]) == ("one", path.removeprefix("/v1"))
    assert failed["model"] == "gpt-5.4"
    [served] = [one for one in _events(caplog, "request.served") if one["route"] != "/metrics"]
    assert (served["model"], served["upstream"]) == ("gpt-5.4", "one")
    outcome = failed["failure"]
    assert f'holdfast_upstream_seconds_count{{outcome="{outcome}",upstream="one"}} 1.0' in counted


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_relayed_answer_is_counted_and_logs_no_failure(
    is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api="chat", name="one")) as gateway:
            await gateway.chat("hi", None, stream=is_stream)
            counted = (await gateway.client.get("/metrics")).text
    assert 'holdfast_upstream_seconds_count{outcome="completed",upstream="one"} 1.0' in counted
    assert not _events(caplog, "upstream.failed")


async def test_an_unreachable_upstream_is_logged_for_a_relay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ProviderSimulator() as simulator:
        behind = upstream(simulator, api="chat", name="one", url="http://127.0.0.1:1/v1")
        async with open_upstream_gateway(behind) as gateway:
            assert (await gateway.post("/v1/chat/completions", None, **CHAT)).status_code == 502
    [failed] = _events(caplog, "upstream.failed")
    assert failed["code"] == "upstream_unreachable"


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_an_answer_that_is_not_stored_counts_as_an_upstream_attempt(api: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api, name="one")) as gateway:
            await gateway.respond("hi", None, store=False)
            counted = (await gateway.client.get("/metrics")).text
    assert 'holdfast_upstream_seconds_count{outcome="completed",upstream="one"} 1.0' in counted


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("status", [200, 500])
async def test_a_relayed_request_has_a_trace(
    provider: ProviderSimulator,
    is_stream: bool,
    status: int,
) -> None:
    if status != 200:
        provider.add_fault("error", status=status, message="broken")
    async with traced_gateway(provider, api="chat") as gateway:
        body = {"model": "gpt-4.1", "stream": is_stream, **CHAT}
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == status
    spans = gateway.spans()
    assert [span.name for span in spans] == ["chat gpt-4.1", "turn"]
    [call, turn] = [attributes(span) for span in spans]
    assert call["http.response.status_code"] == status
    assert call["gen_ai.provider.name"] == turn["gen_ai.provider.name"] == "openai"
    assert (call.get("error.type") is None) == (status == 200)
    parent = provider.requests()[0].headers["traceparent"]
    context = spans[0].context
    assert context is not None
    assert f"{context.span_id:016x}" in parent
