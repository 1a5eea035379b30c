"""A server that hangs: it keeps its connections, accepts new ones, and answers nothing.

No request waits longer than the store's limit allows, nothing is lost or done twice by the refusal,
and the log tells of one outage.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from holdfast import app
from holdfast.ports.clock import Clock
from holdfast.schedules.settings import ScheduleSettings
from holdfast.settings import SearchSettings, Settings, StoreSettings
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.store import SqlStore
from tests.http_server import serving
from tests.postgres import PostgresServer, private_server

LIMIT_SECONDS = 1.0
"""How long the store waits for an answer in these tests."""
SILENCE_SECONDS = 20.0
"""Far more than a request may take then: the test fails instead of waiting for its end."""
SECONDS = 100.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that can be frozen."""
    with private_server() as server:
        yield server


def freeze(server: PostgresServer, how: signal.Signals) -> None:
    """Stop all processes of a server, or let them go on."""
    first = server.process()
    for process in (first, *first.children(recursive=True)):
        try:
            process.send_signal(how)
        except psutil.NoSuchProcess:
            continue


@asynccontextmanager
async def frozen(server: PostgresServer) -> AsyncIterator[None]:
    freeze(server, signal.SIGSTOP)
    try:
        yield
    finally:
        freeze(server, signal.SIGCONT)


@asynccontextmanager
async def gateway(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a gateway with all its followers, whose store waits for less time."""

    async def open_store(url: str, *, clock: Clock) -> SqlStore:
        assert clock
        return await open_postgres(url, answer_seconds=LIMIT_SECONDS)

    monkeypatch.setattr(app, "open_store", open_store)
    settings = Settings(
        store=StoreSettings(url=server.url()),
        search=SearchSettings(),
        schedules=(ScheduleSettings(name="hourly", every="1h", prompt="hello", model="demo"),),
    )
    async with (
        app.open_application(settings) as application,
        serving(application) as served,
        httpx.AsyncClient(base_url=served.url, timeout=SILENCE_SECONDS) as client,
    ):
        yield client


def turn(text: str, key: str, **more: object) -> dict[str, object]:
    """Return the arguments of a keyed request that can be repeated."""
    return {
        "json": {"model": "demo", "messages": [{"role": "user", "content": text}], **more},
        "headers": {"X-Session-Key": key, "Idempotency-Key": f"{key}/{text}"},
    }


async def insist(client: httpx.AsyncClient, text: str, key: str) -> str:
    """Send a turn until it is answered, as a client would; return the answer."""
    while True:
        response = await client.post("/v1/chat/completions", **turn(text, key))  # type: ignore[arg-type]
        if response.status_code == 200:
            return str(response.json()["choices"][0]["message"]["content"])
        assert response.status_code == 503, response.text
        await asyncio.sleep(0.1)


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events of the log that an operator sees."""
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


async def test_no_request_hangs_with_the_store_and_the_log_tells_of_one_outage(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(SECONDS), gateway(server, monkeypatch) as client:
        await insist(client, "0", "k")
        with caplog.at_level(logging.INFO, logger="holdfast"):
            async with frozen(server):
                for _ in range(3):
                    responses = await asyncio.gather(
                        *(client.post("/v1/chat/completions", **turn("1", "k")) for _ in range(4)),  # type: ignore[arg-type]
                        client.post("/v1/chat/completions", **turn("1", "new")),  # type: ignore[arg-type]
                        client.post("/v1/chat/completions", **turn("1", "s", stream=True)),  # type: ignore[arg-type]
                        client.post("/v1/responses", json={"model": "demo", "input": "hello"}),
                        client.get("/v1/sessions"),
                        client.get("/v1/search", params={"q": "hello"}),
                        client.get("/readyz"),
                    )
                    for response in responses:
                        assert response.status_code == 503, response.text
                        assert response.headers["retry-after"]
                    assert (await client.get("/healthz")).status_code == 200
            for key in ("k", "new"):
                await insist(client, "1", key)
            while "store.available" not in outages(caplog):  # noqa: ASYNC110 - of the log
                await asyncio.sleep(0.05)
        told = outages(caplog)
        assert told.count("store.unavailable") == told.count("store.available") == 1
        assert len(told) <= 20, told
        for key, count in (("k", 2), ("new", 1)):
            found = await client.get("/v1/sessions", params={"key": key})
            [session] = found.json()["data"]
            items = await client.get(f"/v1/sessions/{session['id']}/items")
            roles = [item["role"] for item in items.json()["data"]]
            assert roles == ["user", "assistant"] * count
