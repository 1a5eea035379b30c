"""The Responses API over WebSocket, in the test's own loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import Tenant
from holdfast.core.model.synthetic_outputs import INTERRUPTED
from holdfast.core.transaction.commands import AddApiKey, RevokeApiKey
from holdfast.engine.settings import ContextSettings, StreamSettings
from tests.in_process import (
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)
from tests.socket_client import SocketClient
from tests.streaming import Stream, TalkingModel, kinds, numbers


@asynccontextmanager
async def connected(gateway: RunningGateway, **more: Any) -> AsyncIterator[SocketClient]:
    client = SocketClient(gateway.server, **more)
    try:
        yield client
    finally:
        await client.leave()


async def test_frames_are_the_events_of_the_stream() -> None:
    async with open_gateway(TalkingModel()) as gateway, connected(gateway) as client:
        client.create("hi")
        told = await client.response()
        assert kinds(told) == [
            "created", "in_progress", "output_item.added", "content_part.added",
            "output_text.delta", "output_text.delta", "output_text.delta", "output_text.done",
            "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        assert numbers(told) == list(range(len(told)))
        name = told[-1]["response"]["id"]
        stream = Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true")
        assert await stream.rest() == told


async def test_requests_of_one_connection_run_one_after_the_other() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway, connected(gateway) as client:
        client.create("first")
        client.create("second")
        await model.entered.acquire()
        assert model.shown == [["first"]]
        model.gate.set()
        assert (await client.response())[-1]["type"] == "response.completed"
        assert (await client.response())[-1]["type"] == "response.completed"
        assert model.shown == [["first"], ["second"]]


async def test_streams_of_one_connection_run_in_parallel() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway, connected(gateway) as client:
        client.create("first", stream_id="a")
        client.create("second", stream_id="b")
        await model.entered.acquire()
        await model.entered.acquire()
        model.gate.set()
        told = await client.response()
        told += await client.response()
        assert {event["stream_id"] for event in told} == {"a", "b"}
        for lane in ("a", "b"):
            mine = [event for event in told if event["stream_id"] == lane]
            assert numbers(mine) == list(range(11))


async def test_an_unstored_response_can_be_continued_only_on_its_connection() -> None:
    async with open_gateway() as gateway:
        async with connected(gateway) as client:
            client.create("a", store=False)
            first = (await client.response())[-1]["response"]
            client.create("b", store=False, previous_response_id=first["id"])
            second = (await client.response())[-1]["response"]
            assert second["previous_response_id"] == first["id"]
            client.create("c", store=False, previous_response_id=second["id"])
            assert (await client.response())[-1]["type"] == "response.completed"
            assert gateway.model.shown[-1] == ["a", "re:a", "b", "re:b", "c"]
            assert (await gateway.client.get("/v1/sessions")).json()["data"] == []
        async with connected(gateway) as client:
            client.create("d", store=False, previous_response_id=second["id"])
            (error,) = await client.response()
            assert error["status"] == 400
            assert error["error"]["code"] == "previous_response_not_found"
            assert error["error"]["param"] == "previous_response_id"
        answer = await gateway.client.get(f"/v1/responses/{second['id']}")
        assert answer.status_code == 404


async def test_an_unstored_response_may_continue_a_stored_one() -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        stored = (await gateway.respond("a", key=None)).json()
        client.create("b", store=False, previous_response_id=stored["id"])
        second = (await client.response())[-1]["response"]
        client.create("c", store=False, previous_response_id=second["id"])
        await client.response()
        assert gateway.model.shown[-1] == ["a", "re:a", "b", "re:b", "c"]
        (session,) = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert session["turn_count"] == 1


async def test_a_request_may_be_registered_without_a_model_call() -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        client.create("a", store=False, generate=False)
        told = await client.response()
        assert kinds(told) == ["created", "in_progress", "completed"]
        assert told[-1]["response"]["output"] == []
        assert gateway.model.calls == []
        client.create("b", store=False, previous_response_id=told[-1]["response"]["id"])
        await client.response()
        assert gateway.model.shown == [["a", "b"]]


async def test_a_response_whose_continuation_failed_is_dropped() -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        client.create("a", store=False)
        name = (await client.response())[-1]["response"]["id"]
        client.create("b", store=False, previous_response_id=name, metadata={"k": 1})
        (error,) = await client.response()
        assert error["status"] == 400
        client.create("b", store=False, previous_response_id=name)
        (error,) = await client.response()
        assert error["error"]["code"] == "previous_response_not_found"


async def test_a_key_in_the_handshake_binds_every_request_to_its_session() -> None:
    async with (
        open_gateway() as gateway,
        connected(gateway, headers={"X-Session-Key": "k", "Idempotency-Key": "once"}) as client,
    ):
        for text in ("a", "b"):
            client.create(text)
            assert (await client.response())[-1]["type"] == "response.completed"
        assert await gateway.log() == ["a", "re:a", "b", "re:b"]


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("not json", None),
        ("[]", None),
        ({"type": "response.cancel"}, "type"),
        ({"model": "scripted"}, "type"),
        ({"type": "response.create", "input": "x"}, "model"),
        ({"type": "response.create", "model": "m", "input": "x", "background": True}, "background"),
        (
            '{"type":"response.create","model":"m","input":"x","previous_response_id":"\\ud800"}',
            None,
        ),
        (
            '{"type":"response.create","model":"m","input":"x","previous_response_id":[[]]}',
            "previous_response_id",
        ),
        (
            '{"type":"response.create","model":"m","input":"x","previous_response_id":1e999}',
            "previous_response_id",
        ),
    ],
)
async def test_an_invalid_frame_is_answered_and_the_connection_stays_open(
    frame: Any, param: str | None
) -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        client.send(frame)
        error = await client.next()
        assert error is not None
        assert error["type"] == "error"
        assert error["status"] == 400
        assert error["error"]["param"] == param
        client.create("hi")
        assert (await client.response())[-1]["type"] == "response.completed"


async def test_more_items_than_allowed_are_rejected_over_a_websocket_too() -> None:
    async with open_gateway() as gateway, connected(gateway) as client:
        client.create([{"role": "user", "content": "x"}] * 20_001)
        (error,) = await client.response()
        assert error["status"] == 413
        assert error["error"]["code"] == "too_many_items"
        client.create("hi")
        assert (await client.response())[-1]["type"] == "response.completed"
        assert len(gateway.model.calls) == 1


async def test_a_connection_is_closed_at_its_maximum_duration() -> None:
    async with open_gateway(streams=StreamSettings(websocket_seconds=0.01)) as gateway:
        client = SocketClient(gateway.server)
        error = await client.next()
        assert error is not None
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert await client.next() is None
        assert client.close_code == 1000


@pytest.mark.parametrize("policy", ["complete", "cancel"])
async def test_on_disconnect_decides_about_the_turn_of_a_closed_connection(policy: Any) -> None:
    model = TalkingModel(is_gated=True)
    async with open_gateway(model, streams=StreamSettings(on_disconnect=policy)) as gateway:
        client = SocketClient(gateway.server, headers={"X-Session-Key": "k"})
        client.create("hi")
        model.allow(3)
        name = ""
        for _ in range(5):
            event = await client.next()
            assert event is not None
            name = name or event["response"]["id"]
        await client.leave()
        model.allow_all()
        stream = Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true")
        last = (await stream.rest())[-1]["response"]
        assert last["status"] == ("completed" if policy == "complete" else "cancelled")


async def test_unknown_paths_and_invalid_headers_are_rejected_at_the_handshake() -> None:
    async with open_gateway() as gateway:
        client = SocketClient(gateway.server, path="/v1/nothing")
        value = await client.next()
        assert client.rejected == 404
        assert value is not None
        assert value["error"]["code"] == "unknown_url"
        client = SocketClient(gateway.server, headers={"X-Session-Key": ""})
        value = await client.next()
        assert client.rejected == 400
        assert value is not None
        assert value["error"]["code"] == "invalid_session_key"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null"])
async def test_a_foreign_origin_is_rejected_at_the_handshake(origin: str) -> None:
    async with open_gateway() as gateway:
        headers = {"Origin": origin}
        client = SocketClient(gateway.server, headers=headers)
        value = await client.next()
        assert client.rejected == 403
        assert value is not None
        assert value["error"]["code"] == "origin_not_allowed"
        headers["Origin"] = gateway.server.url
        async with connected(gateway, headers=headers) as client:
            client.create("hi")
            assert (await client.response())[-1]["type"] == "response.completed"


async def test_a_connection_belongs_to_its_tenant_and_ends_with_its_key() -> None:
    async with open_gateway() as gateway:
        for tenant in ("mine", "other"):
            name, digest = f"key_{tenant}", hash_key(f"hf_{tenant}")
            await gateway.engine.submit(AddApiKey(id=name, tenant=Tenant(tenant), hash=digest))
        gateway.application.reload_keys()
        bare = SocketClient(gateway.server)
        assert await bare.next() is not None
        assert bare.rejected == 401
        async with (
            connected(gateway, headers={"Authorization": "Bearer hf_mine"}) as first,
            connected(gateway, headers={"Authorization": "Bearer hf_other"}) as second,
        ):
            first.create("a")
            name = (await first.response())[-1]["response"]["id"]
            second.create("b", previous_response_id=name)
            (error,) = await second.response()
            assert error["error"]["code"] == "previous_response_not_found"
            await gateway.engine.submit(RevokeApiKey(id="key_mine"))
            gateway.application.reload_keys()
            first.create("c", previous_response_id=name)
            (error,) = await first.response()
            assert error["status"] == 401
            assert len(gateway.model.calls) == 1


@pytest.mark.parametrize(("is_stored", "end"), [(True, "response.failed"), (False, "error")])
async def test_a_failing_model_ends_the_response_and_not_the_connection(
    is_stored: bool, end: str
) -> None:
    def fail(_: Any) -> Any:
        raise ProviderFailure("no", failure_class="terminal", status=400)

    model = ScriptedModel(fail)
    async with open_gateway(model) as gateway, connected(gateway) as client:
        client.create("hi", store=is_stored)
        assert (await client.response())[-1]["type"] == end
        model.script = ScriptedModel().script
        client.create("hi", store=is_stored)
        assert (await client.response())[-1]["type"] == "response.completed"


async def test_a_connection_may_request_compaction_and_continue_from_its_item() -> None:
    elide = ContextSettings(mode="elide")
    async with open_gateway(context=elide) as gateway, connected(gateway) as client:
        client.create([{"role": "user", "content": "the word is plum"}], store=False)
        first = (await client.response())[-1]["response"]["id"]
        trigger = [{"type": "compaction_trigger"}]
        client.create(trigger, store=False, previous_response_id=first)
        told = await client.response()
        assert "compaction.compacting" in kinds(told)
        [item] = told[-1]["response"]["output"]
        assert item["type"] == "compaction"
        client.create([item, {"role": "user", "content": "what was it?"}], store=False)
        assert (await client.response())[-1]["type"] == "response.completed"
        assert gateway.model.shown[-1][-1] == "what was it?"
        assert "the word is plum" in gateway.model.shown[-1][0]


async def test_text_that_is_not_utf8_closes_the_connection_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with open_gateway() as gateway:
        url = gateway.server.url.replace("http://", "ws://") + "/v1/responses"
        async with connect(url, proxy=None) as client:
            await client.send(b"\xff", text=True)
            await client.wait_closed()
        assert client.close_code == 1007
    reported = capsys.readouterr().err
    assert "Invalid UTF-8" in reported
    assert "Traceback" not in reported


def _caller() -> ScriptedModel:
    def script(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if text_of(items[-1]) == "look":
            return [called("look", "c1")]
        return [said(f"re:{text_of(items[-1])}")]

    return ScriptedModel(script)


HERE = {"type": "function_call_output", "call_id": "c1", "output": "here"}


@pytest.mark.parametrize("generates", [False, True])
async def test_a_late_output_takes_the_place_of_a_synthetic_one_that_no_model_has_answered(
    *, generates: bool
) -> None:
    async with open_gateway(_caller()) as gateway, connected(gateway) as client:
        stored = (await gateway.respond("look", key=None)).json()
        client.create("wait", store=False, generate=generates, previous_response_id=stored["id"])
        second = (await client.response())[-1]["response"]
        client.create([HERE], store=False, previous_response_id=second["id"])
        last = (await client.response())[-1]
        assert last["type"] == "response.completed", last
        late = "[Output of the tool call c1 (look), which came late]\nhere"
        shown = ["look", "look()", "=here", "wait"]
        if generates:
            shown = ["look", "look()", f"={INTERRUPTED}", "wait", "re:wait", late]
        assert gateway.model.shown[-1] == shown


@pytest.mark.parametrize("generates", [False, True])
async def test_a_session_stores_no_synthetic_output_of_a_cached_response(
    *, generates: bool
) -> None:
    headers = {"X-Session-Key": "k"}
    async with (
        open_gateway(_caller()) as gateway,
        connected(gateway, headers=headers) as client,
    ):
        stored = (await gateway.respond("look")).json()
        client.create("wait", store=False, generate=generates, previous_response_id=stored["id"])
        second = (await client.response())[-1]["response"]
        client.create([HERE], store=False, previous_response_id=second["id"])
        last = (await client.response())[-1]
        assert last["type"] == "response.completed", last
        output = INTERRUPTED if generates else "here"
        assert gateway.model.shown[-1][:3] == ["look", "look()", f"={output}"]
        assert gateway.model.shown[-1][-1].endswith("here" if generates else "wait")
        assert (await gateway.log()).count("=here") == 1
        assert not any("interrupted" in text for text in await gateway.log())
