"""An SDK's retry of a stored request without a session runs once, if there is no doubt."""

import asyncio
from typing import Any

import httpx
import httpx2
import msgspec
import openai
import pytest

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.http.request import keyless_retries
from holdfast.ports.store import SessionQuery
from tests.in_process import RunningGateway, ScriptedModel
from tests.streaming import Stream

HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": "OpenAI/Python",
    "Authorization": "Bearer one",
}
BODY: dict[str, Any] = {"model": "scripted", "input": "hello"}


async def _turns(gateway: RunningGateway) -> int:
    views = await gateway.engine.read.sessions(DEFAULT_TENANT, SessionQuery(limit=100))
    return sum(view.session.turn_count for view in views)


async def _leave(gateway: RunningGateway, body: dict[str, Any] = BODY, **headers: str) -> None:
    """Send a request, and close the connection before its answer."""
    gateway.model.gate.clear()
    stream = Stream(gateway.server, "POST", "/v1/responses", body, headers=HEADERS | headers)
    await gateway.model.entered.acquire()
    leaving = asyncio.create_task(stream.leave())
    # The server learns of the end of a connection before it answers a later request.
    await gateway.client.get("/healthz")
    gateway.model.gate.set()
    await leaving


async def _send(
    gateway: RunningGateway,
    count: int,
    body: dict[str, Any] = BODY,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    given = HEADERS | {"x-stainless-retry-count": str(count)} | (headers or {})
    content = msgspec.json.encode(body)
    return await gateway.client.post("/v1/responses", content=content, headers=given)


class _ImpatientTransport(httpx2.AsyncHTTPTransport):
    """Times out once the model is called; the model answers when the request is sent again."""

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__()
        self._model = model
        self.sent = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the first one gets no answer in time."""
        self.sent += 1
        if request.headers["x-stainless-retry-count"] != "0":
            self._model.gate.set()
            return await super().handle_async_request(request)
        sending = asyncio.create_task(super().handle_async_request(request))
        await self._model.entered.acquire()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        raise httpx2.ReadTimeout("no answer in time", request=request)


async def test_the_retry_of_the_openai_client_is_the_same_turn(gateway: RunningGateway) -> None:
    gateway.model.gate.clear()
    transport = _ImpatientTransport(gateway.model)
    client = openai.AsyncOpenAI(
        base_url=f"{gateway.server.url}/v1", api_key="any", max_retries=2,
        http_client=openai.DefaultAsyncHttpxClient(transport=transport),
    )  # fmt: skip
    async with client:
        await client.responses.create(model="scripted", input="hello")
    assert transport.sent == 2
    assert len(gateway.model.calls) == 1
    assert await _turns(gateway) == 1


async def test_a_retry_of_a_request_whose_client_left_gets_its_answer(
    gateway: RunningGateway,
) -> None:
    await _leave(gateway)
    answer = await _send(gateway, 1)
    assert answer.json()["output"][0]["content"][0]["text"] == "re:hello"
    assert len(gateway.model.calls) == 1
    # The count was claimed; a further retry of the same client has a higher one.
    assert (await _send(gateway, 2)).json()["id"] == answer.json()["id"]
    assert (await _send(gateway, 2)).json()["id"] != answer.json()["id"]


async def test_a_background_request_that_was_answered_is_not_repeated(
    gateway: RunningGateway,
) -> None:
    body = BODY | {"background": True}
    first = await _send(gateway, 0, body)
    assert first.status_code == 200
    # It was delivered: another one with a count is a request of its own.
    assert (await _send(gateway, 1, body)).json()["id"] != first.json()["id"]


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer two"}, {"User-Agent": "OpenAI/JS"}],
    ids=["another key", "another client"],
)
async def test_somebody_elses_retry_is_a_request_of_its_own(
    gateway: RunningGateway, headers: dict[str, str]
) -> None:
    await _leave(gateway)
    assert (await _send(gateway, 1, headers=headers)).status_code == 200
    assert len(gateway.model.calls) == 2
    assert await _turns(gateway) == 2


async def test_a_retry_from_another_address_is_a_request_of_its_own(
    gateway: RunningGateway,
) -> None:
    await _leave(gateway)
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(transport=transport, timeout=30) as client:
        headers = HEADERS | {"x-stainless-retry-count": "1"}
        content = msgspec.json.encode(BODY)
        await client.post(f"{gateway.server.url}/v1/responses", content=content, headers=headers)
    assert len(gateway.model.calls) == 2


async def test_a_retry_that_comes_too_late_is_a_request_of_its_own(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _leave(gateway)
    monkeypatch.setattr(keyless_retries, "RETRY_SECONDS", -1.0)
    await _send(gateway, 1)
    assert len(gateway.model.calls) == 2


async def test_another_body_is_a_request_of_its_own(gateway: RunningGateway) -> None:
    await _leave(gateway)
    await _send(gateway, 1, BODY | {"input": "hello!"})
    assert len(gateway.model.calls) == 2


async def test_two_who_left_with_the_same_words_share_no_answer(gateway: RunningGateway) -> None:
    await _leave(gateway)
    await _leave(gateway)
    await _send(gateway, 1)
    assert len(gateway.model.calls) == 3
    assert await _turns(gateway) == 3


async def test_an_answer_that_was_delivered_is_not_repeated(gateway: RunningGateway) -> None:
    await _send(gateway, 0)
    await _send(gateway, 1)
    assert len(gateway.model.calls) == 2


async def test_the_same_request_without_a_count_is_another_one(gateway: RunningGateway) -> None:
    await _leave(gateway)
    await _send(gateway, 0)
    assert len(gateway.model.calls) == 2
