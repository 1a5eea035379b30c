"""Event feeds over HTTP: live and resumable, global or per session."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.engine.settings import StreamSettings
from tests.http_server import HttpServer
from tests.in_process import Item, RunningGateway, open_gateway
from tests.streaming import Stream


class Follower:
    """Somebody who follows a feed."""

    def __init__(self, server: HttpServer, path: str, **headers: str) -> None:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.stream = Stream(server, "GET", path, headers=sent)

    async def next(self) -> Item | None:
        """Return the next event, checked for what each has; `None` at the end."""
        while (block := await self.stream.text()) is not None:
            if block.startswith(":"):
                self.stream.comments += 1
                continue
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            event: Item = msgspec.json.decode(fields["data"])
            assert (fields["id"], fields["event"]) == (event["id"], event["type"])
            assert event["object"] == "event"
            return event
        return None

    async def kinds(self, count: int) -> list[str]:
        """Return the kinds of the next events."""
        events = [await self.next() for _ in range(count)]
        return [event["type"] if event else "end" for event in events]

    async def leave(self) -> None:
        """Close the connection."""
        await self.stream.leave()


def follow(gateway: RunningGateway, path: str = "/v1/events", **headers: str) -> Follower:
    return Follower(gateway.server, path, **headers)


async def session_id(gateway: RunningGateway, key: str = "k") -> str:
    found = (await gateway.client.get("/v1/sessions", params={"key": key})).json()["data"][0]
    return str(found["id"])


TURN = ["turn.started", "turn.completed"]


async def test_a_session_feed_starts_at_the_beginning_and_continues_live() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        name = await session_id(gateway)
        follower = follow(gateway, f"/v1/sessions/{name}/events")
        assert await follower.kinds(3) == ["session.created", *TURN]
        await gateway.respond("two")
        event = await follower.next()
        assert event is not None
        assert (event["type"], event["id"], event["number"]) == ("turn.started", "4", 4)
        assert event["session_id"] == name
        assert event["turn_id"]
        done = await follower.next()
        assert done is not None
        assert done["data"] == {"first_seq": 3, "last_seq": 4}
        await follower.leave()


@pytest.mark.parametrize("how", ["query", "header"])
async def test_a_feed_resumes_after_the_last_seen_event(how: str) -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        name = await session_id(gateway)
        for path in (f"/v1/sessions/{name}/events", "/v1/events"):
            first = follow(gateway, path)
            seen = await first.next()
            assert seen is not None
            await first.leave()
            if how == "query":
                second = follow(gateway, f"{path}?after={seen['id']}")
            else:
                second = follow(gateway, path, last_event_id=seen["id"])
            assert await second.kinds(2) == TURN
            await second.leave()


async def test_the_global_feed_covers_all_sessions() -> None:
    async with open_gateway() as gateway:
        follower = follow(gateway)
        await gateway.respond("one", key="a")
        await gateway.respond("one", key="b")
        events = [await follower.next() for _ in range(6)]
        sessions = [event["session_id"] if event else None for event in events]
        first, second = await session_id(gateway, "a"), await session_id(gateway, "b")
        assert sessions == [first] * 3 + [second] * 3
        await follower.leave()


async def test_after_latest_gives_only_new_events() -> None:
    async with open_gateway() as gateway:
        await gateway.respond("one")
        name = await session_id(gateway)
        paths = ("/v1/events?after=latest", f"/v1/sessions/{name}/events?after=latest")
        followers = [follow(gateway, path) for path in paths]
        for follower in followers:
            # The first comment says that it is let in.
            assert await follower.stream.text() == ": keep-alive"
        await gateway.client.post(f"/v1/sessions/{name}", json={"metadata": {"a": "b"}})
        for follower in followers:
            assert await follower.kinds(1) == ["session.annotated"]
            await follower.leave()


async def test_every_kind_of_event_is_sent() -> None:
    async with open_gateway() as gateway:
        follower = follow(gateway)
        await gateway.respond("one")
        name = await session_id(gateway)
        items = (await gateway.client.get(f"/v1/sessions/{name}/items")).json()["data"]
        body = {"items": [{"role": "user", "content": "x"}]}
        await gateway.client.post(f"/v1/sessions/{name}/items", json=body)
        conversation = f"/v1/conversations/conv_{name.removeprefix('ses_')}"
        await gateway.client.delete(f"{conversation}/items/{items[0]['id']}")
        await gateway.client.post(f"/v1/sessions/{name}/fork")
        await gateway.client.post(f"/v1/sessions/{name}/reset", json={"reason": "because"})
        expected = [
            "session.created", *TURN, "items.appended", "items.hidden", "session.created",
            "session.retired", "session.created",
        ]  # fmt: skip
        assert await follower.kinds(8) == expected
        await follower.leave()


async def test_a_feed_ends_when_its_session_is_erased() -> None:
    async with open_gateway(streams=StreamSettings(keep_alive_seconds=0.01)) as gateway:
        await gateway.respond("one")
        name = await session_id(gateway)
        follower = follow(gateway, f"/v1/sessions/{name}/events?after=latest")
        assert await follower.stream.text() == ": keep-alive"
        assert (await gateway.client.delete(f"/v1/sessions/{name}")).status_code == 200
        assert await follower.next() is None
        assert follower.stream.is_complete


async def test_an_idle_feed_is_kept_alive_by_comments() -> None:
    async with open_gateway(streams=StreamSettings(keep_alive_seconds=0.01)) as gateway:
        for path in ("/v1/events", f"/v1/sessions/{await _made(gateway)}/events?after=latest"):
            follower = follow(gateway, path)
            while follower.stream.comments < 3:
                block = await follower.stream.text()
                if block == ": keep-alive":
                    follower.stream.comments += 1
            await follower.leave()


async def _made(gateway: RunningGateway) -> str:
    made = (await gateway.client.post("/v1/conversations", json={})).json()["id"]
    return f"ses_{made.removeprefix('conv_')}"


async def test_a_disconnected_or_stalled_follower_leaves_no_task_behind() -> None:
    async with open_gateway() as gateway:
        before = asyncio.all_tasks()
        stalled, reading = follow(gateway), follow(gateway)
        assert await reading.stream.text() == ": keep-alive"
        stalled.stream.may_read.clear()
        await gateway.respond("one")
        assert await reading.kinds(1) == ["session.created"]
        await stalled.leave()
        await reading.leave()
        assert "holdfast-feed" not in {task.get_name() for task in asyncio.all_tasks()}
        async with asyncio.timeout(30):
            left = asyncio.all_tasks() - before
            await asyncio.gather(*left, return_exceptions=True)


async def test_a_stopping_server_ends_its_feeds() -> None:
    async with open_gateway() as gateway:
        followers = [
            follow(gateway),
            follow(gateway, f"/v1/sessions/{await _made(gateway)}/events"),
        ]
        for follower in followers:
            assert await follower.stream.text() == ": keep-alive"
        gateway.application.begin_stop()
        for follower in followers:
            while await follower.next() is not None:
                pass
            assert follower.stream.is_complete


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/events?after=x", 400, "unknown_cursor"),
        ("/v1/events?after=1", 400, "unknown_cursor"),
        ("/v1/events?after=1-", 400, "unknown_cursor"),
        (f"/v1/events?after=0-{2**63}", 400, "unknown_cursor"),
        ("/v1/events?after=%00", 400, "invalid_input"),
        ("/v1/sessions/{id}/events?after=-1", 400, "unknown_cursor"),
        ("/v1/sessions/{id}/events?after=999", 400, "unknown_cursor"),
        (f"/v1/sessions/{{id}}/events?after={2**64}", 400, "unknown_cursor"),
        ("/v1/sessions/ses_x/events", 404, "session_not_found"),
        ("/v1/sessions/%00/events", 404, "session_not_found"),
    ],
)
async def test_an_invalid_feed_request_is_rejected(path: str, status: int, code: str) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.client.get(path.replace("{id}", await _made(gateway)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_the_number_of_followers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_gateway() as gateway:
        events: Any = gateway.application._events
        monkeypatch.setattr(events._feed, "_max_followers", 1)
        first = follow(gateway)
        assert await first.stream.text() == ": keep-alive"
        await gateway.respond("one")
        assert await first.kinds(1) == ["session.created"]
        answer = await gateway.client.get("/v1/events")
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "too_many_followers"
        assert answer.headers["retry-after"]
        await first.leave()
        assert events._feed.followers == 0
