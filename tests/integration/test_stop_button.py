"""A client stops a stream and goes on while the run is still going."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.core.errors import InvalidInput, ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.transaction.commands import Accept
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.settings import LaneSettings
from holdfast.ports.provider import ModelCall
from holdfast.ports.store import Store
from holdfast.schedules.service import Scheduler
from tests.in_process import Item, RunningGateway, ScriptedModel, open_gateway
from tests.integration.chat_room import open_chat_room
from tests.loop_clock import stopped_loop_clock
from tests.streaming import Stream, TalkingModel
from tests.tools.test_steered_responses import Repeats

WORDS = ("one ", "two ", "three ", "four")
WHOLE = "".join(WORDS)
pytestmark = pytest.mark.usefixtures("slow_stops")


class _Talk:
    """A conversation with one complete turn, and another one whose answer is being streamed."""

    def __init__(self, gateway: RunningGateway, model: TalkingModel) -> None:
        self.gateway = gateway
        self.model = model
        self.history = [_user("zero"), _assistant(WHOLE)]
        self.more: Item = {}
        """Further fields of streamed requests."""

    async def begin(self) -> None:
        """Complete the first turn."""
        await self.gateway.respond([_user("zero")])
        self.model.is_gated = True
        await self.model.entered.acquire()

    async def start(self, *items: Item, words: int = 2, **headers: str) -> Stream:
        """Stream a turn until this many words of its answer were received."""
        stream = self.stream(*items, **headers)
        await self.model.entered.acquire()
        if words:
            self.model.allow(2 + words)
            seen = 0
            while seen < words:
                event = await stream.next()
                assert event is not None
                seen += event["type"] == "response.output_text.delta"
        return stream

    def stream(self, *items: Item, **headers: str) -> Stream:
        """Post a streamed request with these items behind the first turn."""
        body = {"model": "scripted", "input": [*self.history, *items], "stream": True, **self.more}
        given = {"X-Session-Key": "k", **headers}
        return Stream(self.gateway.server, "POST", "/v1/responses", body, headers=given)

    async def go_on(self, *items: Item, **more: Any) -> httpx.Response:
        """Post a request with these items behind the first turn; return its answer."""
        asked = asyncio.create_task(self.gateway.respond([*self.history, *items], **more))
        await self.model.entered.acquire()
        self.model.allow_all()
        answer = await asked
        assert answer.status_code == 200, answer.text
        return answer

    async def queue(self, *items: Item, **more: Any) -> httpx.Response:
        """Do the same with a request that waits for the running one."""
        asked = asyncio.create_task(self.gateway.respond([*self.history, *items], **more))
        await self.gateway.until_queued(1)
        self.model.allow_all()
        return await asked

    async def log(self) -> list[str]:
        """Return what is visible behind the first turn."""
        return (await self.gateway.log())[2:]


@pytest.fixture(name="talk")
async def _talk(store_url: str, request: pytest.FixtureRequest) -> AsyncIterator[_Talk]:
    model, lanes = TalkingModel(*WORDS), getattr(request, "param", None)
    async with open_gateway(model, store_url=store_url, lanes=lanes) as gateway:
        talk = _Talk(gateway, model)
        await talk.begin()
        yield talk
        model.allow_all()


def _user(text: str) -> Item:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Item:
    return {"role": "assistant", "content": text}


def _refuse(_: ModelCall) -> None:
    raise InvalidInput("this model cannot be asked so")


async def _status(talk: _Talk, stream: Stream) -> tuple[str, str | None]:
    turn = (await talk.gateway.client.get(f"/v1/turns/{stream.headers['x-turn-id']}")).json()
    return turn["status"], (turn.get("error") or {}).get("code")


async def test_a_client_that_stops_and_goes_on_continues_from_what_it_was_shown(
    talk: _Talk,
) -> None:
    stream = await talk.start(_user("count"))
    await stream.leave()
    await talk.go_on(_user("count"), _assistant("one two"), _user("enough"))
    assert await talk.log() == ["count", "one two ", "enough", WHOLE]
    assert talk.model.shown[-1][2:] == ["count", "one two ", "enough"]
    assert await _status(talk, stream) == ("cancelled", "superseded")


async def test_a_client_that_kept_less_than_it_was_sent_continues_from_what_it_kept(
    talk: _Talk,
) -> None:
    await (await talk.start(_user("count"), words=3)).leave()
    await talk.go_on(_user("count"), _assistant("one two"), _user("enough"))
    assert await talk.log() == ["count", "one two", "enough", WHOLE]
    assert b'"incomplete"' in talk.model.calls[-1].items[3]


async def test_a_client_that_drops_the_stopped_answer_hides_it(talk: _Talk) -> None:
    await (await talk.start(_user("count"))).leave()
    await talk.go_on(_user("count"), _user("no, sing"))
    assert await talk.log() == ["count", "no, sing", WHOLE]


async def test_regenerate_after_a_stop_gives_one_answer(talk: _Talk) -> None:
    await (await talk.start(_user("count"))).leave()
    await talk.go_on(_user("count"))
    assert await talk.log() == ["count", WHOLE]
    assert talk.model.shown[-1][2:] == ["count"]


async def test_an_edit_after_a_stop_takes_the_questions_place(talk: _Talk) -> None:
    await (await talk.start(_user("count"))).leave()
    await talk.go_on(_user("sing"))
    assert await talk.log() == ["sing", WHOLE]


async def test_the_first_question_sent_again_after_a_stop_is_answered_again(talk: _Talk) -> None:
    body = {"model": "scripted", "input": [_user("first")], "stream": True}
    headers = {"X-Session-Key": "new"}
    await _stop_first_question(talk, body)
    again = Stream(talk.gateway.server, "POST", "/v1/responses", body, headers=headers)
    await talk.model.entered.acquire()
    talk.model.allow_all()
    await again.rest()
    assert await talk.gateway.log("new") == ["first", WHOLE]


async def _read_until(client: socket.socket, mark: bytes) -> None:
    found = b""
    while mark not in found:
        piece = await asyncio.get_running_loop().sock_recv(client, 65_536)
        assert piece, found
        found += piece


async def test_a_stop_is_seen_by_the_request_that_follows_it_at_once(talk: _Talk) -> None:
    body = b'{"model": "scripted", "input": "first", "stream": true}'
    lines = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-session-key: new"
    start = "POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1"
    sent = f"{start}\r\n{lines}\r\n\r\n".encode() + body
    address = talk.gateway.server.address
    with socket.create_connection(address) as first, socket.create_connection(address) as again:
        for client in (first, again):
            client.setblocking(False)
            client.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await _read_until(client, b"}")
        first.send(sent)
        await talk.model.entered.acquire()
        talk.model.allow(3)
        await _read_until(first, b"one ")
        first.close()
        again.send(sent)
        entered = asyncio.create_task(talk.model.entered.acquire())
        queued = asyncio.create_task(talk.gateway.until_queued(1, "new"))
        await asyncio.wait((entered, queued), return_when=asyncio.FIRST_COMPLETED)
        queued.cancel()
        talk.model.allow_all()
        await _read_until(again, b"[DONE]")
        await entered
    assert await talk.gateway.log("new") == ["first", WHOLE]


async def test_a_client_that_is_still_reading_is_not_superseded(talk: _Talk) -> None:
    stream = await talk.start(_user("count"))
    await talk.queue(_user("count"), _assistant("one two"), _user("and then?"))
    assert (await stream.rest())[-1]["type"] == "response.completed"
    # What the history repeats of the turn in flight is not new.
    assert await talk.log() == ["count", WHOLE, "and then?", WHOLE]


async def test_a_client_that_left_before_any_output_is_not_superseded(talk: _Talk) -> None:
    stream = await talk.start(_user("count"), words=0)
    await stream.leave()
    await talk.queue(_user("count"), _user("and then?"))
    assert await talk.log() == ["count", WHOLE, "and then?", WHOLE]


async def test_a_background_stream_is_not_superseded(talk: _Talk) -> None:
    talk.more = {"background": True}
    await (await talk.start(_user("count"))).leave()
    await talk.queue(_user("count"), _assistant("one two"), _user("and then?"))
    assert await talk.log() == ["count", WHOLE, "and then?", WHOLE]


async def _watch(gateway: RunningGateway, key: str) -> None:
    """Read a word of a key's running turn, as somebody who watches it, and leave."""
    [session] = (await gateway.client.get("/v1/sessions", params={"key": key})).json()["data"]
    name = session["active_turn_id"].replace("turn_", "resp_")
    stream = Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true")
    while (event := await stream.next()) and event["type"] != "response.output_text.delta":
        pass
    assert event is not None
    await stream.leave()


async def test_a_turn_of_a_channel_is_not_superseded(store_url: str) -> None:
    model, key = TalkingModel(*WORDS, is_gated=True), "agent:main:telegram:direct:7"
    async with open_chat_room("telegram", model, store_url=store_url) as room:
        room.telegram.say("count")
        model.allow(4)
        await room.until_text("one")
        await _watch(room.gateway, key)
        history = [_user("count"), _assistant("one two"), _user("and then?")]
        asked = asyncio.create_task(room.gateway.respond(history, key))
        await room.gateway.until_queued(1, key)
        model.allow_all()
        assert (await asked).status_code == 200
        await room.until_text(WHOLE)
        assert await room.gateway.log(key) == ["count", WHOLE, "and then?", WHOLE]


async def test_a_turn_of_a_schedule_is_not_superseded(talk: _Talk) -> None:
    scheduler = Scheduler(talk.gateway.engine, talk.gateway.turn_service)
    schedule = {"name": "s", "prompt": "count", "model": "scripted", "every": "1h", "session": "k"}
    await scheduler.save(DEFAULT_TENANT, schedule)
    await scheduler.run_now(DEFAULT_TENANT, "s")
    await scheduler.run_due()
    await talk.model.entered.acquire()
    talk.model.allow(4)
    await talk.queue(_user("count"), _assistant("one two"), _user("and then?"))
    assert await talk.log() == ["count", WHOLE, "and then?", WHOLE]


async def test_another_api_key_supersedes_nothing(talk: _Talk) -> None:
    await (await talk.start(_user("count"), Authorization="Bearer one")).leave()
    headers = {"Authorization": "Bearer two"}
    await talk.queue(_user("count"), _assistant("one"), _user("mine"), headers=headers)
    assert await talk.log() == ["count", WHOLE, "mine", WHOLE]


async def test_nothing_is_superseded_while_somebody_waits(talk: _Talk) -> None:
    await (await talk.start(_user("count"))).leave()
    waiting = asyncio.create_task(talk.gateway.respond([_user("me too")]))
    await talk.gateway.until_queued(1)
    later = asyncio.create_task(
        talk.gateway.respond([*talk.history, _user("count"), _assistant("one"), _user("stop")])
    )
    await talk.gateway.until_queued(2)
    talk.model.allow_all()
    await asyncio.gather(waiting, later)
    assert await talk.log() == ["count", WHOLE, "me too", WHOLE, "stop", WHOLE]


async def test_a_whole_answer_in_progress_is_not_superseded(talk: _Talk) -> None:
    first = asyncio.create_task(talk.gateway.respond([*talk.history, _user("count")]))
    await talk.model.entered.acquire()
    await talk.queue(_user("count"), _user("and then?"))
    await first
    assert await talk.log() == ["count", WHOLE, "and then?", WHOLE]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_history_that_cuts_in_supersedes_also_while_the_client_reads(
    talk: _Talk, on_busy: str
) -> None:
    stream = await talk.start(_user("count"))
    headers = {"X-On-Busy": on_busy}
    await talk.go_on(_user("count"), _assistant("one"), _user("enough"), headers=headers)
    assert (await stream.rest())[-1]["type"] == "response.incomplete"
    assert await talk.log() == ["count", "one", "enough", WHOLE]
    assert await _status(talk, stream) == ("cancelled", "superseded")


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_history_that_cuts_in_is_kept_also_while_somebody_waits(
    talk: _Talk, on_busy: str
) -> None:
    stream = await talk.start(_user("count"))
    waiting = asyncio.create_task(talk.gateway.respond([_user("me too")]))
    await talk.gateway.until_queued(1)
    headers = {"X-On-Busy": on_busy}
    await talk.go_on(_user("count"), _assistant("one"), _user("enough"), headers=headers)
    await waiting
    assert await talk.log() == ["count", "one", "enough", WHOLE, "me too", WHOLE]
    assert talk.model.shown[2][2:] == ["count", "one", "enough"]
    assert await _status(talk, stream) == ("cancelled", "superseded")


@pytest.mark.parametrize(
    "talk",
    [LaneSettings(on_busy="interrupt"), LaneSettings(on_busy="rollback")],
    ids=lambda lanes: lanes.on_busy,
    indirect=True,
)
async def test_a_history_cuts_in_where_that_is_the_default(talk: _Talk) -> None:
    stream = await talk.start(_user("count"))
    await talk.go_on(_user("count"), _assistant("one"), _user("enough"))
    assert await talk.log() == ["count", "one", "enough", WHOLE]
    assert await _status(talk, stream) == ("cancelled", "superseded")


@pytest.mark.parametrize("on_busy", ["enqueue", "interrupt", "rollback"])
@pytest.mark.parametrize("mark", ["Idempotency-Key", "x-stainless-retry-count"])
async def test_a_repeat_of_a_request_gets_its_answer_and_does_not_supersede_it(
    talk: _Talk, on_busy: str, mark: str
) -> None:
    headers: dict[str, Any] = {"X-On-Busy": on_busy, mark: "1"}
    is_retry = mark != "Idempotency-Key"
    stream = await talk.start(_user("count"), **{**headers, mark: "0" if is_retry else "1"})
    await stream.leave()
    again = talk.stream(_user("count"), **headers)
    assert await again.next() is not None
    talk.model.allow_all()
    assert (await again.rest())[-1]["type"] == "response.completed"
    assert again.headers["x-turn-id"] == stream.headers["x-turn-id"]
    assert await talk.log() == ["count", WHOLE]


async def test_a_retry_behind_a_cancelled_turn_does_not_supersede_its_own_turn(
    talk: _Talk,
) -> None:
    body = {"model": "scripted", "input": [_user("first")], "stream": True}
    await _stop_first_question(talk, body)
    waiting = asyncio.create_task(talk.gateway.respond("me too", "new"))
    await talk.gateway.until_queued(1, "new")
    [session] = (await talk.gateway.client.get("/v1/sessions?key=new")).json()["data"]
    turns = (await talk.gateway.client.get(f"/v1/sessions/{session['id']}/turns")).json()["data"]
    [queued] = [turn["id"] for turn in turns if turn["status"] == "queued"]
    await talk.gateway.client.post(f"/v1/turns/{queued}/cancel")
    await waiting
    headers = {"X-Session-Key": "new", "x-stainless-retry-count": "1"}
    again = Stream(talk.gateway.server, "POST", "/v1/responses", body, headers=headers)
    assert await again.next() is not None
    [session] = (await talk.gateway.client.get("/v1/sessions?key=new")).json()["data"]
    assert session["queued_turns"] == 1
    talk.model.allow_all()
    await again.rest()
    assert await talk.gateway.log("new") == ["first", WHOLE, "first", WHOLE]


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_repeat_of_a_request_that_cut_in_ends_no_later_turn(
    talk: _Talk, on_busy: str
) -> None:
    talk.model.is_gated = False
    items: list[Item] = [*talk.history, _user("first")]
    headers = {"X-On-Busy": on_busy, "Idempotency-Key": "once"}
    first = (await talk.gateway.respond(items, headers=headers)).json()
    await talk.model.entered.acquire()
    talk.history, talk.model.is_gated = [*items, _assistant(WHOLE)], True
    stream = await talk.start(_user("count"))
    assert (await talk.gateway.respond(items, headers=headers)).json() == first
    talk.model.allow_all()
    assert (await stream.rest())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("on_busy", ["enqueue", "interrupt"])
@pytest.mark.parametrize("status", [400, 409, 429])
async def test_a_request_that_is_refused_supersedes_nothing(
    talk: _Talk, on_busy: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await talk.start(_user("count"))
    await stream.leave()
    headers = {"X-On-Busy": on_busy}
    if status == 400:
        monkeypatch.setattr(talk.model, "check", _refuse)
    elif status == 429:
        talk.gateway.engine.storage = StorageQuota(talk.gateway.engine.read, 1)
    else:
        headers["X-Expected-Session-Id"] = "ses_other"
    items = [*talk.history, _user("count"), _assistant("one"), _user("enough")]
    reply = await talk.gateway.respond(items, headers=headers)
    assert reply.status_code == status, reply.text
    talk.model.allow_all()
    await talk.gateway.until_idle()
    assert await talk.log() == ["count", WHOLE]


async def test_the_first_question_sent_again_is_refused_before_it_supersedes(talk: _Talk) -> None:
    body = {"model": "scripted", "input": [_user("first")], "stream": True}
    await _stop_first_question(talk, body)
    talk.gateway.engine.storage = StorageQuota(talk.gateway.engine.read, 1)
    again = await talk.gateway.client.post(
        "/v1/responses", json=body, headers={"X-Session-Key": "new"}
    )
    assert again.status_code == 429, again.text
    talk.model.allow_all()
    await talk.gateway.until_idle("new")
    assert await talk.gateway.log("new") == ["first", WHOLE]


async def test_an_interruption_that_is_refused_ends_no_turn_of_another_replica(
    talk: _Talk, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream = await talk.start(_user("count"))
        other.engine.storage = StorageQuota(other.engine.read, 1)
        reply = await other.respond("stop", headers={"X-On-Busy": "interrupt"})
        assert reply.status_code == 429, reply.text
        talk.model.allow_all()
        assert (await stream.rest())[-1]["type"] == "response.completed"
        assert await talk.log() == ["count", WHOLE]


@pytest.mark.parametrize(
    ("has_history", "is_elsewhere"), [(True, False), (True, True), (False, True)]
)
async def test_a_request_takes_the_place_of_the_turn_that_it_ends(
    talk: _Talk,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    slow_replies: None,
    *,
    has_history: bool,
    is_elsewhere: bool,
) -> None:
    """A turn of another session that comes in between must not take the only place."""
    async with open_gateway(store_url=store_url) as other:
        asker, rival = (other, talk.gateway) if is_elsewhere else (talk.gateway, other)
        accept, rivals = asker.engine.accept, list[asyncio.Task[httpx.Response]]()
        other.model.gate.clear()

        async def accept_later(command: Accept) -> Any:
            rivals.append(asyncio.create_task(rival.respond("hi", "another")))
            await rival.model.entered.acquire()
            try:
                return await accept(command)
            finally:
                other.model.gate.set()
                talk.model.allow_all()

        await (await talk.start(_user("count"))).leave()
        monkeypatch.setattr(asker.engine, "accept", accept_later)
        asker.engine.limits = LaneSettings().limits(can_run_again=True, max_tenant_turns=1)
        history = [*talk.history, _user("count"), _assistant("one two"), _user("enough")]
        more: Item = {} if has_history else {"headers": {"X-On-Busy": "interrupt"}}
        reply = await asker.respond(history if has_history else "enough", **more)
        assert reply.status_code == 200, reply.text
        assert [(await each).status_code for each in rivals] == [200]


async def test_a_request_that_ended_a_turn_waits_behind_one_that_was_faster(
    talk: _Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, rivals = talk.gateway.engine.accept, list[asyncio.Task[httpx.Response]]()

    async def accept_later(command: Accept) -> Any:
        if not rivals:
            rivals.append(asyncio.create_task(talk.gateway.respond("hi")))
            await talk.model.entered.acquire()
        try:
            return await accept(command)
        finally:
            if command.seen_seq is not None:  # not that of the rival
                talk.model.allow_all()

    await (await talk.start(_user("count"))).leave()
    monkeypatch.setattr(talk.gateway.engine, "accept", accept_later)
    history = [*talk.history, _user("count"), _assistant("one two"), _user("enough")]
    reply = await talk.gateway.respond(history, headers={"X-On-Busy": "reject"})
    assert reply.status_code == 200, reply.text
    assert [(await each).status_code for each in rivals] == [200]


@pytest.mark.parametrize("has_history", [False, True])
async def test_a_repeat_at_another_replica_does_not_interrupt_its_own_turn(
    talk: _Talk, store_url: str, slow_replies: None, *, has_history: bool
) -> None:
    talk.history = talk.history if has_history else []
    headers: dict[str, Any] = {"X-On-Busy": "interrupt", "Idempotency-Key": "once"}
    async with open_gateway(store_url=store_url) as other:
        stream = await talk.start(_user("count"), **headers)
        body = {"model": "scripted", "input": [*talk.history, _user("count")], "stream": True}
        given = {"X-Session-Key": "k", **headers}
        other.engine.meter = repeats = Repeats()
        again = Stream(other.server, "POST", "/v1/responses", body, headers=given)
        await repeats.one.wait()
        talk.model.allow_all()
        ends = [(await one.rest())[-1]["type"] for one in (stream, again)]
        assert ends == ["response.completed"] * 2
        assert await talk.log() == ["count", WHOLE]


async def test_the_same_request_before_any_output_is_the_same_turn(talk: _Talk) -> None:
    stream = await talk.start(_user("count"), words=0)
    again = talk.stream(_user("count"))
    first = await again.next()
    talk.model.allow_all()
    ends = [(await stream.rest())[-1], (await again.rest())[-1]]
    assert [end["type"] for end in ends] == ["response.completed"] * 2
    assert first is not None
    assert first["response"]["id"] == ends[0]["response"]["id"]
    assert await talk.log() == ["count", WHOLE]


async def test_the_same_request_while_its_output_is_read_is_another_turn(talk: _Talk) -> None:
    stream = await talk.start(_user("count"))
    await talk.queue(_user("count"))
    await stream.rest()
    assert await talk.log() == ["count", WHOLE, "count", WHOLE]


async def test_a_client_that_stops_and_goes_on_at_another_replica_supersedes_its_turn(
    talk: _Talk, store_url: str, slow_replies: None
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream = await talk.start(_user("count"))
        await stream.leave()
        history = [*talk.history, _user("count"), _assistant("one two"), _user("enough")]
        assert (await other.respond(history)).status_code == 200
        assert await talk.log() == ["count", "one two ", "enough", "re:enough"]
        assert await _status(talk, stream) == ("cancelled", "superseded")


class _BusyOwner:
    """A store, and its reader, of a process that does not see who asks it to stop until it may."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.may_see = asyncio.Event()
        self.has_seen = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store if hasattr(self._store, name) else self._store.read, name)

    @property
    def read(self) -> Any:
        return self

    async def stop_requests(self) -> Any:
        await self.may_see.wait()
        self.has_seen.set()
        return await self._store.read.stop_requests()


@pytest.mark.parametrize("on_busy", ["enqueue", "reject"])
async def test_a_replica_that_does_not_reply_in_time_counts_as_connected(
    store_url: str, monkeypatch: pytest.MonkeyPatch, on_busy: str
) -> None:
    model, owners, waits = TalkingModel(*WORDS), list[_BusyOwner](), asyncio.Event()

    def wrap(store: Store) -> Any:
        owners.append(_BusyOwner(store))
        return owners[0]

    async with (
        open_gateway(model, store_url=store_url, wrap=wrap) as gateway,
        open_gateway(store_url=store_url) as other,
    ):
        talk = _Talk(gateway, model)
        await talk.begin()
        stream = await talk.start(_user("count"))
        await stream.leave()
        history = [*talk.history, _user("count"), _assistant("one two"), _user("enough")]
        wait_until_ended = other.engine.wait_until_ended

        async def wait(*args: Any, **more: Any) -> Any:
            waits.set()
            return await wait_until_ended(*args, **more)

        monkeypatch.setattr(other.engine, "wait_until_ended", wait)
        with stopped_loop_clock() as clock:
            asked = asyncio.create_task(other.respond(history, headers={"X-On-Busy": on_busy}))
            await waits.wait()
            clock.advance(0.249)
            for _ in range(20):  # time enough to accept the turn, if it did not wait for a reply
                [session] = (await other.client.get("/v1/sessions?key=k")).json()["data"]
                assert session["queued_turns"] == 0
            clock.advance(0.001)
            if on_busy == "enqueue":
                await other.until_queued(1)
            else:
                assert (await asked).status_code == 409
        # Now it is too late for the request to end the turn.
        owners[0].may_see.set()
        await owners[0].has_seen.wait()
        await talk.gateway.turn_service.in_flight.serve_requests()
        model.allow_all()
        assert (await asked).status_code == (200 if on_busy == "enqueue" else 409)
        await talk.gateway.until_idle()
        assert await _status(talk, stream) == ("completed", None)
        rest = ["enough", "re:enough"] if on_busy == "enqueue" else []
        assert await talk.log() == ["count", WHOLE, *rest]


async def test_a_request_that_counted_as_connected_ends_nothing_when_the_reader_leaves_later(
    talk: _Talk, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream = await talk.start(_user("count"))
        history = [*talk.history, _user("count"), _assistant("one two"), _user("and then?")]
        asked = asyncio.create_task(other.respond(history))
        await other.until_queued(1)
        await stream.leave()
        await talk.gateway.turn_service.in_flight.serve_requests()
        talk.model.allow_all()
        assert (await asked).status_code == 200
        assert await _status(talk, stream) == ("completed", None)
        assert await talk.log() == ["count", WHOLE, "and then?", "re:and then?"]


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_request_outlives_the_deletion_of_the_turn_that_it_ends(
    talk: _Talk, store_url: str, slow_replies: None, *, is_elsewhere: bool
) -> None:
    async with open_gateway(store_url=store_url) as other:
        asker = other if is_elsewhere else talk.gateway
        stream = await talk.start(_user("count"))
        await stream.leave()
        wait_until_ended = asker.engine.wait_until_ended

        async def wait(*args: Any, **more: Any) -> Any:
            view = await wait_until_ended(*args, **more)
            session = f"/v1/sessions/{stream.headers['x-session-id']}"
            assert (await asker.client.delete(session)).status_code == 200
            return view

        asker.engine.wait_until_ended = wait  # type: ignore[method-assign]
        talk.model.is_gated = False
        reply = await asker.respond([*talk.history, _user("count"), _user("enough")])
        assert reply.status_code == 200, reply.text


async def test_regenerate_at_another_replica_right_after_a_stop_gives_one_answer(
    talk: _Talk, store_url: str, slow_replies: None
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream = await talk.start(_user("count"), words=1)
        await stream.leave()
        body = {"model": "scripted", "input": [*talk.history, _user("count")], "stream": True}
        again = Stream(other.server, "POST", "/v1/responses", body, headers={"X-Session-Key": "k"})
        assert (await again.rest())[-1]["type"] == "response.completed"
        assert await talk.log() == ["count", "re:count"]
        assert await _status(talk, stream) == ("cancelled", "superseded")


async def _stop_first_question(talk: _Talk, body: dict[str, Any]) -> None:
    """Stream the first answer of the session "new", and leave after one word."""
    headers = {"X-Session-Key": "new"}
    stream = Stream(talk.gateway.server, "POST", "/v1/responses", body, headers=headers)
    await talk.model.entered.acquire()
    talk.model.allow(3)
    while (event := await stream.next()) and event["type"] != "response.output_text.delta":
        pass
    await stream.leave()


@pytest.mark.parametrize("lead", [[], [{"role": "system", "content": "be brief"}]])
async def test_the_first_question_sent_again_to_another_replica_is_answered_again(
    talk: _Talk, store_url: str, slow_replies: None, lead: list[Item]
) -> None:
    body = {"model": "scripted", "input": [*lead, _user("first")], "stream": True}
    async with open_gateway(store_url=store_url) as other:
        await _stop_first_question(talk, body)
        again = Stream(
            other.server, "POST", "/v1/responses", body, headers={"X-Session-Key": "new"}
        )
        assert (await again.rest())[-1]["type"] == "response.completed"
        log = await talk.gateway.log("new")
        assert log[len(lead) :] == ["first", "re:first"]


async def test_the_same_first_question_at_another_replica_waits_while_it_is_read(
    talk: _Talk, store_url: str
) -> None:
    body = {"model": "scripted", "input": [_user("first")], "stream": True}
    headers = {"X-Session-Key": "new"}
    async with open_gateway(store_url=store_url) as other:
        stream = Stream(talk.gateway.server, "POST", "/v1/responses", body, headers=headers)
        await talk.model.entered.acquire()
        again = Stream(other.server, "POST", "/v1/responses", body, headers=headers)
        await other.until_queued(1, "new")
        talk.model.allow_all()
        await asyncio.gather(stream.rest(), again.rest())
        assert await talk.gateway.log("new") == ["first", WHOLE, "first", "re:first"]


def _fail(_: list[Item]) -> list[Item]:
    raise ProviderFailure("the model is down", failure_class="transient", status=503)


async def test_a_question_that_fails_while_another_replica_asks_for_it_is_not_shown_twice(
    store_url: str, monkeypatch: pytest.MonkeyPatch, slow_replies: None
) -> None:
    model, waits = ScriptedModel(_fail), asyncio.Event()
    model.gate.clear()
    async with (
        open_gateway(model, store_url=store_url) as gateway,
        open_gateway(store_url=store_url) as other,
    ):
        wait_until_ended = other.engine.wait_until_ended

        async def wait(*args: Any, **more: Any) -> Any:
            waits.set()
            return await wait_until_ended(*args, **more)

        monkeypatch.setattr(other.engine, "wait_until_ended", wait)
        first = asyncio.create_task(gateway.respond("count"))
        await model.entered.acquire()
        again = asyncio.create_task(other.respond("count"))
        await waits.wait()
        model.gate.set()
        assert [(await one).status_code for one in (first, again)] == [503, 200]
        assert await gateway.log() == ["count", "re:count"]


async def test_another_api_key_supersedes_nothing_at_another_replica(
    talk: _Talk, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        await (await talk.start(_user("count"), Authorization="Bearer one")).leave()
        history = [*talk.history, _user("count"), _assistant("one two"), _user("mine")]
        headers = {"Authorization": "Bearer two"}
        asked = asyncio.create_task(other.respond(history, headers=headers))
        await other.until_queued(1)
        talk.model.allow_all()
        await asked
        assert await talk.log() == ["count", WHOLE, "mine", "re:mine"]
