"""A database comes back without its last commits, as an asynchronous standby does.

What is gone was acknowledged, and nobody deleted it: clients are told to try again, never that it
does not exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast
from holdfast.core.errors import StoreUnavailable, TurnInterrupted
from holdfast.engine.embedded.turn_handle import Item
from holdfast.stores.sql import store as sql_store
from tests.in_process import RunningGateway, ScriptedModel, open_gateway, text_of
from tests.postgres import PostgresServer, private_server

SECONDS = 100.0


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[PostgresServer]:
    with private_server() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """The URL of the running server, with nothing of the tests before in it."""
    server.start()
    server.execute("drop schema public cascade", "create schema public")
    return server.url()


class LaggingStandby:
    """Takes over from the server with what was committed until it stopped following."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server = server
        self._copy = folder / "copy"

    def _stop_following(self) -> None:
        self._server.stop()
        self._server.copy_to(self._copy)
        self._server.start()

    async def stop_following(self) -> None:
        """Apply no later commit."""
        await asyncio.to_thread(self._stop_following)

    def _take_over(self) -> None:
        self._server.stop()
        self._server.restore(self._copy)
        self._server.start()

    async def take_over(self) -> None:
        """Be the only server from now on."""
        await asyncio.to_thread(self._take_over)


@pytest.fixture
def standby(server: PostgresServer, tmp_path: Path) -> LaggingStandby:
    """A standby of the server."""
    return LaggingStandby(server, tmp_path)


async def insist(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Send until the answer is not that the database is out of reach."""
    while True:
        reply = await send()
        if reply.status_code < 500 or code_of(reply) not in ("store_unavailable", "run_fenced"):
            return reply
        await asyncio.sleep(0.05)


def code_of(reply: httpx.Response) -> str | None:
    """Return the code of an error."""
    code: str | None = reply.json()["error"]["code"]
    return code


def user(text: str) -> list[Item]:
    """Return a message."""
    return [{"role": "user", "content": text}]


async def ask(gateway: RunningGateway, key: str, **more: Any) -> httpx.Response:
    """Send a message under a key, again and again if need be."""
    headers = {"Idempotency-Key": f"once-{key}"}
    return await insist(lambda: gateway.chat(user("hi"), key, headers=headers, **more))


async def test_a_turn_that_was_lost_under_its_client_can_be_sent_again(
    url: str, standby: LaggingStandby
) -> None:
    model = ScriptedModel()
    async with asyncio.timeout(SECONDS), open_gateway(model, store_url=url) as gateway:
        assert (await ask(gateway, "old")).status_code == 200
        await standby.stop_following()
        assert (await ask(gateway, "warm")).status_code == 200
        model.gate.clear()
        running = [
            asyncio.create_task(gateway.chat(user("in flight"), key)) for key in ("old", "new")
        ]
        await model.entered.acquire()
        streamed = asyncio.create_task(gateway.respond("streamed", "streamed", stream=True))
        behind = asyncio.create_task(gateway.chat(user("behind"), "new", timeout=None))
        for _ in range(4):
            await model.entered.acquire()
        await gateway.until_queued(1, "new")
        await standby.take_over()
        model.gate.set()
        for lost in (*running, behind):
            reply = await lost
            # Who waited for the lane may have asked while no server answered.
            out_of_reach = {"store_unavailable"} if lost is behind else set()
            assert reply.status_code == 503, reply.text
            assert code_of(reply) in {"turn_interrupted", *out_of_reach}
            assert int(reply.headers["retry-after"]) > 0
        stream = (await streamed).text
        assert "session_deleted" not in stream
        assert "turn_cancelled" not in stream
        for key in ("old", "new"):
            reply = await ask(gateway, key)
            assert reply.status_code == 200, "the same request goes through"
        assert await gateway.log("new") == ["hi", "re:hi"]


async def test_a_model_is_shown_what_the_database_has_and_not_what_it_lost(
    url: str, standby: LaggingStandby
) -> None:
    model = ScriptedModel()
    async with asyncio.timeout(SECONDS), open_gateway(model, store_url=url) as gateway:
        await ask(gateway, "k")
        await standby.stop_following()
        await insist(lambda: gateway.chat(user("lost"), "k"))
        await standby.take_over()
        async with open_gateway(store_url=url) as other:
            await insist(lambda: other.chat(user("other"), "k"))
        await insist(lambda: gateway.chat(user("next"), "k"))
        assert model.shown[-1] == ["hi", "re:hi", "other", "re:other", "next"]


async def test_what_was_lost_is_logged_by_session(
    url: str, standby: LaggingStandby, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(SECONDS), open_gateway(store_url=url) as gateway:
        await ask(gateway, "kept")
        await standby.stop_following()
        longer = await insist(lambda: gateway.chat(user("more"), "kept"))
        gone = await ask(gateway, "gone")
        await standby.take_over()
        await insist(lambda: gateway.chat(user("again"), "probe"))

        def logged(event: str) -> list[dict[str, object]]:
            return [vars(record) for record in caplog.records if record.getMessage() == event]

        while not logged("store.history_lost"):  # noqa: ASYNC110 - of the log
            await asyncio.sleep(0.05)
    (total,) = logged("store.history_lost")
    assert (total["sessions"], total["items"]) == (2, 4)
    lost = {
        one["session_id"]: (one["known_items"], one["found_items"])
        for one in logged("session.history_lost")
    }
    assert lost == {
        longer.headers["X-Session-Id"]: (4, 2),
        gone.headers["X-Session-Id"]: (2, 0),
    }


async def test_a_lost_session_is_not_an_unknown_one(
    url: str, standby: LaggingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(SECONDS), open_gateway(store_url=url) as gateway:
        erased = (await ask(gateway, "erased")).headers["x-session-id"]
        await standby.stop_following()
        lost = (await ask(gateway, "lost")).headers["x-session-id"]
        await insist(lambda: gateway.client.delete(f"/v1/sessions/{erased}"))
        await standby.take_over()
        await insist(lambda: gateway.client.delete(f"/v1/sessions/{erased}"))

        def requests(name: str) -> list[Callable[[], Awaitable[httpx.Response]]]:
            by_id = {"X-Session-Id": name}
            return [
                lambda: gateway.client.get(f"/v1/sessions/{name}"),
                lambda: gateway.client.get(f"/v1/sessions/{name}/items"),
                lambda: gateway.chat(user("hi"), None, headers=by_id),
                lambda: gateway.respond("hi", None, headers=by_id),
                lambda: gateway.client.delete(f"/v1/sessions/{name}"),
            ]

        async def answers(name: str) -> set[tuple[int, str | None, bool]]:
            replies = [await insist(send) for send in requests(name)]
            return {
                (reply.status_code, code_of(reply), "retry-after" in reply.headers)
                for reply in replies
            }

        assert await answers(lost) == {(503, "session_lost", True)}
        conversation = await gateway.respond("hi", None, conversation=lost.replace("ses", "conv"))
        assert (conversation.status_code, code_of(conversation)) == (503, "session_lost")
        transcript = await gateway.client.get("/v1/transcript", headers={"X-Session-Id": lost})
        assert transcript.status_code == 503, "not an empty conversation"
        assert await answers("ses_" + "0" * 32) == {(404, "session_not_found", False)}
        assert await answers(erased) == {(404, "session_not_found", False)}
        # Nobody repairs it any more.
        monkeypatch.setattr(sql_store, "LOST_SECONDS", -1.0)
        assert await answers(lost) == {(404, "session_not_found", False)}


async def test_an_embedded_turn_that_was_lost_says_that_it_may_be_sent_again(
    url: str, standby: LaggingStandby
) -> None:
    async with asyncio.timeout(SECONDS), holdfast.open(url) as hf:
        await standby.stop_following()

        async def model(items: list[Item]) -> str:
            if text_of(items[-1]) == "lost":
                await standby.take_over()
            return "answer"

        session = None
        while session is None:
            with suppress(StoreUnavailable):
                session = await hf.session("k")
        with pytest.raises(TurnInterrupted):
            await session.run("lost", model)
        session = await hf.session("k")
        await session.run("again", model)
        assert [text_of(item) for item in await session.items()] == ["again", "answer"]
