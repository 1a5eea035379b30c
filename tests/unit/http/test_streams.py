"""Streams are independent of runs: readers disconnect, stall and resume; every stream ends."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.transaction.commands import ExpireWorker, Extend, Reset
from holdfast.engine.settings import LaneSettings, StreamSettings
from holdfast.engine.streaming import live_response
from holdfast.engine.streaming.live_response import WINDOW_BYTES
from holdfast.ports.provider import Answer, EventSink, ModelCall, ModelEvent
from holdfast.ports.store import Store
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel, kinds, model_events, numbers

BIG = "x" * 10_000


def ask(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": text, "stream": True, **more}


def post(gateway: RunningGateway, body: dict[str, Any], key: str | None = None) -> Stream:
    headers = {"X-Session-Key": key} if key is not None else {}
    return Stream(gateway.server, "POST", "/v1/responses", body, headers=headers)


async def get(gateway: RunningGateway, name: str) -> dict[str, Any]:
    value: dict[str, Any] = (await gateway.client.get(f"/v1/responses/{name}")).json()
    return value


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_stalled_reader_misses_nothing_and_delays_nobody(is_background: bool) -> None:
    words = tuple(f"{number:05d}{BIG}" for number in range(200))
    model = TalkingModel(*words, is_gated=True)
    async with open_gateway(model) as gateway:
        slow = post(gateway, ask(background=is_background))
        first = await slow.take(1)
        slow.may_read.clear()
        name = first[0]["response"]["id"]
        live = gateway.turn_service.live(name)
        assert live is not None
        quick = Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true")
        model.allow_all()
        told = await quick.rest()
        assert numbers(told) == list(range(len(told)))
        assert live.held_bytes <= WINDOW_BYTES + 3 * 200 * len(BIG)  # the last events show it all
        assert live.first_held > 100
        slow.may_read.set()
        assert first + await slow.rest() == told


def ask_chat(**more: Any) -> dict[str, Any]:
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        **more,
    }


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_stalled_reader_of_an_unstored_response_is_told_that_it_lost_the_stream(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_response, "STALL_SECONDS", -1.0)  # nobody keeps up
    words = tuple(BIG for _ in range(200))
    body = ask_chat() if "chat" in path else ask(store=False)
    model = TalkingModel(*words)
    model.gate.clear()
    async with open_gateway(model) as gateway:
        slow = Stream(gateway.server, "POST", path, body, headers={"X-Session-Key": "k"})
        await slow.is_answered.wait()
        slow.may_read.clear()
        model.gate.set()
        [view] = await gateway.engine.read.turns(SessionId(slow.headers["x-session-id"]))
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, view.turn.id)
        slow.may_read.set()
        blocks = []
        while (block := await slow.text()) is not None:
            blocks.append(block)
        last = msgspec.json.decode(blocks[-1].split("data: ")[1])
        assert (last.get("error") or last)["code"] == "stream_lost"
        assert not slow.is_complete
        assert not [block for block in blocks if "response.completed" in block or '"stop"' in block]
        assert await gateway.log() == ["hi", "".join(words)]


async def test_a_reader_that_pauses_for_a_moment_gets_all_of_an_unstored_response() -> None:
    words = tuple(f"{number:05d}{BIG}" for number in range(200))
    async with open_gateway(TalkingModel(*words)) as gateway:
        slow = post(gateway, ask(store=False), key="k")
        await slow.take(1)
        slow.may_read.clear()
        [view] = await gateway.engine.read.turns(SessionId(slow.headers["x-session-id"]))
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, view.turn.id)
        slow.may_read.set()
        told = await slow.rest()
        assert "".join(event["delta"] for event in told if "delta" in event) == "".join(words)
        assert slow.is_complete
        assert told[-1]["type"] == "response.completed"


async def test_an_idle_stream_is_kept_alive_by_comments() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model, streams=StreamSettings(keep_alive_seconds=0.01)) as gateway:
        for stream in (
            post(gateway, ask()),
            Stream(
                gateway.server,
                "POST",
                "/v1/chat/completions",
                ask_chat(),
            ),
        ):
            text = await stream.text()
            while text is not None and not text.startswith(":"):
                text = await stream.text()
            assert text == ": keep-alive"
        model.allow_all()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_disconnect_cancels_the_turn_if_so_configured(is_stream: bool) -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model, streams=StreamSettings(on_disconnect="cancel")) as gateway:
        stream = post(gateway, ask(stream=is_stream), key="k")
        await model.entered.acquire()
        model.allow(3)
        for _ in range(3):
            await model.sent.acquire()
        await stream.leave()
        found = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        assert found["status"] == "idle"
        assert found["last_turn"]["status"] == "cancelled"
        assert found["last_turn"]["error"]["code"] == "client_left"


async def test_background_turns_continue_after_a_disconnect_in_any_mode() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model, streams=StreamSettings(on_disconnect="cancel")) as gateway:
        stream = post(gateway, ask(background=True))
        name = (await stream.take(1))[0]["response"]["id"]
        await stream.leave()
        model.allow_all()
        await Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true").rest()
        assert (await get(gateway, name))["status"] == "completed"


class Checkpoints:
    """A store that tells when the text so far was made durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.partials: asyncio.Queue[list[str]] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Any) -> Any:
        outcome = await self._store.submit(command)
        if isinstance(command, Extend) and command.partial is not None:
            texts = [
                msgspec.json.decode(item.body)["content"][0]["text"] for item in command.partial
            ]
            self.partials.put_nowait(texts)
        return outcome


@pytest.mark.parametrize("is_background", [True, False])
async def test_partial_text_is_stored_while_the_model_pauses(is_background: bool) -> None:
    model = TalkingModel("one ", "two ", "three", is_gated=True)
    stores: list[Checkpoints] = []

    def watch(store: Store) -> Any:
        stores.append(Checkpoints(store))
        return stores[0]

    async with open_gateway(model, wrap=watch) as gateway:
        stream = post(gateway, ask(background=is_background))
        model.allow(4)
        async with asyncio.timeout(20):
            assert await stores[0].partials.get() == ["one two "]
        name = (await stream.take(1))[0]["response"]["id"]
        running = await get(gateway, name)
        assert running["status"] == "in_progress"
        assert [item["status"] for item in running["output"]] == ["in_progress"]
        assert running["output"][0]["content"][0]["text"] == "one two "
        model.allow_all()
        assert (await stream.rest())[-1]["type"] == "response.completed"


class BreakingModel(TalkingModel):
    """Says some of its events, then breaks off as it is told."""

    def __init__(self, count: int, failure: Exception) -> None:
        super().__init__()
        self.count = count
        self.failure = failure

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        for kind, data in model_events("msg_1", self.words)[: self.count]:
            sink.write([ModelEvent(kind, data)])
        await self.gate.wait()
        raise self.failure

    async def answer(self, call: ModelCall) -> Answer:
        raise self.failure


@pytest.mark.parametrize("is_background", [True, False])
@pytest.mark.parametrize("count", range(9))
async def test_a_failing_model_ends_the_stream_as_failed_and_keeps_the_partial_text(
    count: int, is_background: bool
) -> None:
    failure = ProviderFailure("out of breath", failure_class="terminal", status=500)
    async with open_gateway(BreakingModel(count, failure)) as gateway:
        told = await post(gateway, ask(background=is_background), key="k").rest()
        assert numbers(told) == list(range(len(told)))
        last = told[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        error = {"code": "provider_failure", "message": "out of breath"}
        assert last["response"]["error"] == error
        kept = "".join(("one ", "two ", "three")[: max(count - 2, 0)])
        texts = [item["content"][0]["text"] for item in last["response"]["output"]]
        assert texts == ([kept] if kept else [])
        name = last["response"]["id"]
        assert await get(gateway, name) == last["response"]
        again = await Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true").rest()
        assert again == told
        child = await gateway.respond("more", key=None, previous_response_id=name)
        assert child.json()["error"]["code"] == "previous_response_not_found"


async def test_an_internal_error_also_ends_the_stream() -> None:
    async with open_gateway(BreakingModel(3, ZeroDivisionError())) as gateway:
        told = await post(gateway, ask(), key="k").rest()
        assert told[-1]["type"] == "response.failed"
        assert told[-1]["response"]["error"]["code"] == "server_error"
        assert (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0][
            "status"
        ] == "idle"


class CutShortModel(TalkingModel):
    """Stops at its limit."""

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        answer = await super().stream(call, sink)
        reason = "max_output_tokens"
        return Answer(items=answer.items, status="incomplete", incomplete_reason=reason)


async def test_an_incomplete_answer_ends_as_incomplete_and_may_be_continued() -> None:
    async with open_gateway(CutShortModel()) as gateway:
        told = await post(gateway, ask()).rest()
        last = told[-1]["response"]
        assert told[-1]["type"] == "response.incomplete"
        assert last["status"] == "incomplete"
        assert last["incomplete_details"] == {"reason": "max_output_tokens"}
        plain = await gateway.respond("hi", key=None)
        assert plain.status_code == 200
        assert plain.json()["status"] == "incomplete"
        child = await gateway.respond("more", key=None, previous_response_id=last["id"])
        assert child.json()["status"] == "incomplete"
        assert gateway.model.shown[-1] == ["hi", "one two three", "more"]


async def test_a_reset_during_a_stream_ends_it_as_cancelled() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model) as gateway:
        stream = post(gateway, ask(), key="k")
        model.allow(3)
        told = await stream.take(5)
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]["id"]
        await gateway.engine.submit(
            Reset(
                tenant=DEFAULT_TENANT,
                session_id=SessionId(session),
                new_id=gateway.engine.new_session_id(),
            )
        )
        told += await stream.rest()
        assert told[-1]["type"] == "response.incomplete"
        assert told[-1]["response"]["status"] == "cancelled"
        assert stream.is_complete
        assert (await get(gateway, told[0]["response"]["id"]))["status"] == "cancelled"


@pytest.mark.parametrize("options", [{}, {"background": True}, {"store": False}])
async def test_deleting_the_session_of_a_stream_ends_it_as_cancelled(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    url, model = f"sqlite:///{tmp_path / 'holdfast.db'}", TalkingModel(is_gated=True)
    async with (
        open_gateway(model, store_url=url) as gateway,
        open_gateway(TalkingModel(), store_url=url) as other,
    ):
        running = post(gateway, ask(**options), key="k")
        model.allow(3)
        first = await running.take(5)
        name = first[0]["response"]["id"]
        waiting = post(gateway, ask(**options), key="k")
        streams = [running, waiting]
        if "background" in options:
            elsewhere = Stream(other.server, "GET", f"/v1/responses/{name}?stream=true")
            assert await elsewhere.take(5) == first
            streams.append(elsewhere)
        await waiting.take(1)
        session = running.headers["x-session-id"]
        assert (await gateway.client.delete(f"/v1/sessions/{session}")).status_code == 200
        for stream in streams:
            told = await stream.rest()
            assert told[-1]["type"] == "response.incomplete"
            assert told[-1]["response"]["status"] == "cancelled"
            assert stream.is_complete


async def test_a_chat_stream_of_a_cancelled_turn_ends_with_its_error_code() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model) as gateway:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "scripted", "messages": messages, "stream": True}
        headers = {"X-Session-Key": "k"}
        stream = Stream(gateway.server, "POST", "/v1/chat/completions", body, headers=headers)
        model.allow(3)
        await stream.text()
        await gateway.client.post(f"/v1/turns/{stream.headers['x-turn-id']}/cancel")
        chunks = []
        while (text := await stream.text()) is not None:
            chunks.append(text)
        errors = [chunk for chunk in chunks if '"error"' in chunk]
        assert ['"code":"turn_cancelled"' in error for error in errors] == [True]


async def test_a_lane_timeout_ends_a_stream_as_failed() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model, lanes=LaneSettings(max_wait_seconds=0)) as gateway:
        first = post(gateway, ask(), key="k")
        await first.take(1)
        waiting = post(gateway, ask(), key="k")
        told = await waiting.rest()
        assert waiting.status == 200
        assert kinds(told) == ["created", "queued", "failed"]
        assert told[-1]["response"]["error"]["code"] == "lane_timeout"
        model.gate.set()
        assert kinds(await first.rest())[-1] == "completed"


@pytest.mark.parametrize(
    ("count", "text", "end"),
    [(0, "four five", "response.completed"), (4, "one two ", "response.failed")],
)
async def test_a_stream_never_mixes_the_answers_of_two_runs(
    count: int, text: str, end: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    # The first process notices nothing by itself, as if it were paused.
    lanes = LaneSettings(lease_seconds=600, poll_seconds=600)
    paused = BreakingModel(count, ProviderFailure("gone", failure_class="terminal"))
    paused.gate.clear()
    headers = {"X-Session-Key": "k", "Idempotency-Key": "once"}
    async with (
        open_gateway(paused, store_url=url, lanes=lanes) as first,
        open_gateway(TalkingModel("four ", "five"), store_url=url, lanes=lanes) as second,
    ):
        stream = Stream(first.server, "POST", "/v1/responses", ask(), headers=headers)
        told = await stream.take(2 + count)
        await second.engine.store.submit(ExpireWorker(worker=first.engine.worker.id))
        await second.engine.worker.sweep()
        repeat = Stream(second.server, "POST", "/v1/responses", ask(), headers=headers)
        again = await repeat.rest()
        assert again[0]["response"]["id"] == told[0]["response"]["id"]
        assert again[-1]["type"] == "response.completed"
        paused.gate.set()
        told += await stream.rest()
        assert "".join(event["delta"] for event in told if "delta" in event) == text
        assert told[-1]["type"] == end
        assert numbers(told) == list(range(len(told)))
        assert await second.log() == ["hi", "four five"]


async def test_a_second_reader_of_a_request_gets_the_same_stream() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model) as gateway:
        headers = {"Idempotency-Key": "once"}
        first = Stream(gateway.server, "POST", "/v1/responses", ask(), headers=headers)
        told = await first.take(2)
        second = Stream(gateway.server, "POST", "/v1/responses", ask(), headers=headers)
        model.allow_all()
        told += await first.rest()
        assert await second.rest() == told
        third = Stream(gateway.server, "POST", "/v1/responses", ask(), headers=headers)
        assert await third.rest() == told
        assert len(model.calls) == 1


@pytest.mark.parametrize("options", [{}, {"background": True}, {"store": False}])
async def test_an_erased_answer_is_not_streamed_again(options: dict[str, Any]) -> None:
    async with open_gateway(TalkingModel()) as gateway:
        headers = {"X-Session-Key": "k", "Idempotency-Key": "once"}
        path, body = "/v1/responses", ask(**options)
        told = await Stream(gateway.server, "POST", path, body, headers=headers).rest()
        response = told[-1]["response"]
        item = response["output"][0]
        session = (await gateway.client.get("/v1/sessions")).json()["data"][0]["id"]
        place = f"/v1/conversations/conv_{session.removeprefix('ses_')}/items/{item['id']}"
        assert (await gateway.client.delete(f"{place}?erase=true")).status_code == 200
        again = [await Stream(gateway.server, "POST", path, body, headers=headers).rest()]
        if response["store"]:
            stored = f"/v1/responses/{response['id']}?stream=true"
            again.append(await Stream(gateway.server, "GET", stored).rest())
        for events in again:
            assert kinds(events)[-1] == "completed"
            assert events[-1]["response"]["output"] == [{"type": "erased"}]
            assert not [event for event in events if "text" in event or "delta" in event]


@pytest.mark.parametrize(
    "query",
    [
        "stream=maybe",
        "stream=true&starting_after=x",
        "starting_after=3",
        "stream=true&starting_after=-2",
    ],
)
async def test_an_invalid_stream_query_is_rejected(query: str) -> None:
    async with open_gateway(TalkingModel()) as gateway:
        name = (await gateway.respond("hi")).json()["id"]
        answer = await gateway.client.get(f"/v1/responses/{name}?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("stream", "starting_after")


async def test_a_response_that_was_not_streamed_can_be_read_as_a_stream() -> None:
    async with open_gateway(TalkingModel()) as gateway:
        whole = (await gateway.respond("hi")).json()
        stream = Stream(gateway.server, "GET", f"/v1/responses/{whole['id']}?stream=true")
        told = await stream.rest()
        assert kinds(told) == [
            "created", "in_progress", "output_item.added", "content_part.added",
            "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        assert numbers(told) == list(range(9))
        assert told[-1]["response"] == whole
