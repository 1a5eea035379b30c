"""Background responses: returned at once, run by the server, streamed once stored."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.transaction.commands import Command, ExpireWorker, Extend
from holdfast.engine.sessions import submission
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import Store
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel, kinds, numbers

OutcomeT = TypeVar("OutcomeT")
WHOLE = [
    "created", "queued", "in_progress", "output_item.added", "content_part.added",
    "output_text.delta", "output_text.delta", "output_text.delta", "output_text.done",
    "content_part.done", "output_item.done", "completed",
]  # fmt: skip
MODEL_EVENTS = len(WHOLE) - 4


def ask(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": text, "background": True, **more}


async def post(gateway: RunningGateway, text: str = "hi", **more: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/v1/responses", json=ask(text, **more))
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def get(gateway: RunningGateway, name: str) -> dict[str, Any]:
    value: dict[str, Any] = (await gateway.client.get(f"/v1/responses/{name}")).json()
    return value


def follow(gateway: RunningGateway, name: str, after: int | None = None) -> Stream:
    more = "" if after is None else f"&starting_after={after}"
    return Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true{more}")


async def ended(gateway: RunningGateway, name: str) -> dict[str, Any]:
    """Return a response once its stream is over."""
    await follow(gateway, name).rest()
    return await get(gateway, name)


async def test_a_background_response_is_returned_before_the_model_answers() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway:
        begun = await post(gateway)
        assert begun["status"] == "in_progress"
        assert begun["background"] is True
        assert begun["output"] == []
        assert (await get(gateway, begun["id"]))["status"] == "in_progress"
        model.gate.set()
        done = await ended(gateway, begun["id"])
        assert done["output"][0]["content"][0]["text"] == "one two three"
        assert done["completed_at"] is not None


class _UnreadableStore:
    """A store that cannot be read for a while, as if the server had no connection left."""

    def __init__(self, store: Any, failures: int) -> None:
        self._store = store
        self.failures = failures

    @cached_property
    def read(self) -> "_UnreadableStore":
        return _UnreadableStore(self._store.read, self.failures)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def context(self, *args: Any) -> Any:
        self.failures -= 1
        if self.failures >= 0:
            raise StoreUnavailable("too many connections")
        return await self._store.context(*args)


async def test_a_short_outage_does_not_make_a_background_response_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 0.0001)

    def wrap(store: Store) -> Any:
        return _UnreadableStore(store, 3)

    async with open_gateway(TalkingModel(), wrap=wrap) as gateway:
        response = await ended(gateway, (await post(gateway))["id"])
        assert (response["status"], response["error"]) == ("completed", None)


async def test_a_background_response_behind_another_turn_is_queued() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway:
        headers = {"X-Session-Key": "k"}
        first = await gateway.client.post("/v1/responses", json=ask(), headers=headers)
        second = await gateway.client.post("/v1/responses", json=ask("next"), headers=headers)
        assert first.json()["status"] == "in_progress"
        assert second.json()["status"] == "queued"
        turn = (await gateway.client.get(f"/v1/turns/{second.headers['x-turn-id']}")).json()
        assert (turn["status"], turn["response_id"]) == ("queued", second.json()["id"])
        model.gate.set()
        await ended(gateway, second.json()["id"])
        assert await gateway.log() == ["hi", "one two three", "next", "one two three"]


async def test_a_background_response_must_be_stored() -> None:
    async with open_gateway() as gateway:
        answer = await gateway.client.post("/v1/responses", json=ask(store=False))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "background"


async def test_a_background_stream_has_every_event_in_order() -> None:
    async with open_gateway(TalkingModel()) as gateway:
        stream = Stream(gateway.server, "POST", "/v1/responses", ask(stream=True))
        events = await stream.rest()
        assert kinds(events) == WHOLE
        assert numbers(events) == list(range(len(WHOLE)))
        statuses = [event["response"]["status"] for event in events if "response" in event]
        assert statuses == ["queued", "queued", "in_progress", "completed"]
        assert stream.is_complete


class HeldExtends:
    """A store whose checkpoints wait until a test lets them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.may_commit = asyncio.Event()
        self.waiting = asyncio.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        if isinstance(command, Extend):
            self.waiting.release()
            await self.may_commit.wait()
        return await self._store.submit(command)


async def test_background_events_are_sent_only_after_they_are_stored() -> None:
    model = TalkingModel(is_gated=True)
    held: list[HeldExtends] = []

    def hold(store: Store) -> Any:
        held.append(HeldExtends(store))
        return held[0]

    async with open_gateway(model, wrap=hold) as gateway:
        stream = Stream(gateway.server, "POST", "/v1/responses", ask(stream=True))
        assert kinds(await stream.take(2)) == ["created", "queued"]
        model.allow(3)
        for _ in range(3):
            await model.sent.acquire()
        await held[0].waiting.acquire()
        name = (await gateway.client.get("/v1/sessions")).json()["data"][0]["active_turn_id"]
        other = follow(gateway, "resp_" + name.removeprefix("turn_"))
        assert kinds(await other.take(2)) == ["created", "queued"]
        waiting = asyncio.create_task(stream.next())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        held[0].may_commit.set()
        told = await waiting
        assert told is not None
        assert told["type"] == "response.in_progress"
        model.allow_all()
        assert kinds(await stream.rest()) == WHOLE[3:]
        assert kinds(await other.rest()) == WHOLE[2:]


async def _restarted(path: Path, check: Callable[[RunningGateway], Awaitable[None]]) -> None:
    async with open_gateway(TalkingModel(), store_url=f"sqlite:///{path}") as gateway:
        await check(gateway)


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_stream_is_resumed_at_every_number_after_its_end_and_a_restart(
    tmp_path: Path, is_background: bool
) -> None:
    path = tmp_path / "holdfast.db"
    async with open_gateway(TalkingModel(), store_url=f"sqlite:///{path}") as gateway:
        body = ask(stream=True, background=is_background)
        told = await Stream(gateway.server, "POST", "/v1/responses", body).rest()
        name = told[0]["response"]["id"]
        for after in range(len(told)):
            assert await follow(gateway, name, after).rest() == told[after + 1 :]

    async def check(gateway: RunningGateway) -> None:
        assert await follow(gateway, name).rest() == told
        for after in range(len(told)):
            assert await follow(gateway, name, after).rest() == told[after + 1 :]

    await _restarted(path, check)


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_stream_is_resumed_at_every_number_while_it_runs(is_background: bool) -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model) as gateway:
        body = ask(stream=True, background=is_background)
        first = Stream(gateway.server, "POST", "/v1/responses", body)
        told = await first.take(2)
        name = told[0]["response"]["id"]
        readers = {
            -1: follow(gateway, name),
            0: follow(gateway, name, 0),
            1: follow(gateway, name, 1),
        }
        if is_background:
            told += await first.take(1)
        for _ in range(MODEL_EVENTS):
            model.allow()
            told += await first.take(1)
            readers[len(told) - 1] = follow(gateway, name, len(told) - 1)
        model.allow()
        told += await first.rest()
        assert told[-1]["type"] == "response.completed"
        assert numbers(told) == list(range(len(told)))
        for after, reader in readers.items():
            assert await reader.rest() == told[after + 1 :]


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_client_may_disconnect_at_every_event_and_the_turn_continues(
    is_background: bool,
) -> None:
    for count in range(1, len(WHOLE) - 1):
        model = TalkingModel(is_gated=True)
        async with open_gateway(model) as gateway:
            body = ask(stream=True, background=is_background)
            stream = Stream(gateway.server, "POST", "/v1/responses", body)
            model.allow(max(count - (3 if is_background else 2), 0))
            told = await stream.take(count)
            await stream.leave()
            assert not stream.is_complete
            model.allow_all()
            name = told[0]["response"]["id"]
            done = await ended(gateway, name)
            assert done["output"][0]["content"][0]["text"] == "one two three"
            again = await follow(gateway, name, count - 1).rest()
            assert numbers(told + again) == list(range(len(told + again)))
            assert again[-1]["type"] == "response.completed"


async def test_cancelling_ends_a_running_and_a_queued_response_once() -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model) as gateway:
        headers = {"X-Session-Key": "k"}
        body = ask(stream=True)
        running = Stream(gateway.server, "POST", "/v1/responses", body, headers=headers)
        told = await running.take(3)
        model.allow(4)
        told += await running.take(4)
        queued = (await gateway.client.post("/v1/responses", json=ask(), headers=headers)).json()
        assert queued["status"] == "queued"
        for name in (queued["id"], told[0]["response"]["id"]):
            for _ in range(2):
                answer = await gateway.client.post(f"/v1/responses/{name}/cancel")
                assert answer.status_code == 200
                assert answer.json()["status"] == "cancelled"
            assert (await get(gateway, name))["status"] == "cancelled"
        told += await running.rest()
        assert told[-1]["type"] == "response.incomplete"
        assert told[-1]["response"]["status"] == "cancelled"
        assert numbers(told) == list(range(len(told)))
        again = await follow(gateway, queued["id"]).rest()
        assert kinds(again) == ["created", "queued", "incomplete"]


async def test_only_background_responses_can_be_cancelled() -> None:
    async with open_gateway(TalkingModel()) as gateway:
        plain = (await gateway.respond("hi")).json()
        answer = await gateway.client.post(f"/v1/responses/{plain['id']}/cancel")
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await gateway.client.post("/v1/responses/resp_nothing/cancel")).status_code == 404
        done = await ended(gateway, (await post(gateway))["id"])
        answer = await gateway.client.post(f"/v1/responses/{done['id']}/cancel")
        assert answer.json() == done


async def test_a_deleted_response_is_gone_and_cannot_be_continued() -> None:
    async with open_gateway(TalkingModel()) as gateway:
        done = (await gateway.respond("hi")).json()
        path = f"/v1/responses/{done['id']}"
        answer = await gateway.client.delete(path)
        assert answer.json() == {"id": done["id"], "object": "response", "deleted": True}
        for gone in (
            await gateway.client.get(path),
            await gateway.client.get(path + "?stream=true"),
            await gateway.client.delete(path),
            await gateway.client.post(path + "/cancel"),
        ):
            assert gone.status_code == 404
            assert gone.json()["error"]["code"] == "response_not_found"
        child = await gateway.respond("more", key=None, previous_response_id=done["id"])
        assert child.status_code == 400
        assert child.json()["error"]["code"] == "previous_response_not_found"
        assert child.json()["error"]["param"] == "previous_response_id"
        assert await gateway.log() == ["hi", "one two three"]


async def test_a_background_stream_continues_on_another_worker(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    lanes = LaneSettings(lease_seconds=600)
    first_model, second_model = TalkingModel(is_gated=True), TalkingModel("four ", "five")
    async with (
        open_gateway(first_model, store_url=url, lanes=lanes) as first,
        open_gateway(second_model, store_url=url, lanes=lanes) as second,
    ):
        stream = Stream(first.server, "POST", "/v1/responses", ask(stream=True))
        first_model.allow(4)
        told = await stream.take(7)
        name = told[0]["response"]["id"]
        elsewhere = follow(second, name)
        assert await elsewhere.take(7) == told
        await second.engine.store.submit(ExpireWorker(worker=first.engine.worker.id))
        await second.engine.worker.sweep()
        rest = await elsewhere.rest()
        assert numbers(told + rest) == list(range(len(told + rest)))
        assert kinds(rest) == [
            "output_text.done", "content_part.done", "output_item.done", "in_progress",
            "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        torn = rest[2]["item"]
        assert torn["status"] == "incomplete"
        assert torn["content"][0]["text"] == "one two "
        assert {event["output_index"] for event in rest[4:11]} == {1}
        final = rest[-1]["response"]["output"]
        assert [part["text"] for item in final for part in item["content"]] == ["four five"]
        # The zombie's own reader follows too, and nothing was answered twice.
        first_model.allow_all()
        assert await stream.rest() == rest
        assert await follow(first, name).rest() == told + rest
        view = await get(second, name)
        assert view["status"] == "completed"
        assert view["output"] == final


async def test_the_same_idempotency_key_gives_the_same_background_turn() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway:
        headers = {"Idempotency-Key": "once"}
        answers: list[httpx.Response] = [
            await gateway.client.post("/v1/responses", json=ask(), headers=headers)
            for _ in range(2)
        ]
        model.gate.set()
        ids = {answer.json()["id"] for answer in answers}
        assert len(ids) == 1
        done = await ended(gateway, ids.pop())
        again = await gateway.client.post("/v1/responses", json=ask(), headers=headers)
        assert again.json() == done
        assert len(model.calls) == 1


async def test_a_person_in_the_console_is_a_user_whose_turns_run_in_the_background() -> None:
    model = TalkingModel()
    async with open_gateway(model) as gateway:
        for key, source in (("typed", "console"), ("polled", "background")):
            more = {"X-Session-Source": "console"} if source == "console" else {}
            answer = await gateway.client.post(
                "/v1/responses", json=ask(), headers={"X-Session-Key": key, **more}
            )
            await ended(gateway, answer.json()["id"])
            (listed,) = (await gateway.client.get(f"/v1/sessions?key={key}")).json()["data"]
            turn = (await gateway.client.get(f"/v1/turns/{answer.json()['id']}")).json()
            assert (listed["source"], turn["source"]) == (source, source)
            assert (listed["last_user_activity_at"] is not None) == (source == "console")
