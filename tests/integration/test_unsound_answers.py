"""Answers that are not whole, or failed: nothing that a provider remembers is built upon them."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from aiohttp import web

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.session import ProviderState
from holdfast.ports.provider import Answer, EventSink, ModelCall, StateUse
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.integration.odd_server import Reply, odd_server, saying, whole
from tests.integration.test_heals import QUICK
from tests.integration.upstream_gateway import open_upstream_gateway, read

STATE = ProviderState("scripted", "account", "scripted", b"resp_1")


class RememberingModel(ScriptedModel):
    """A model whose server remembers; its answers are as whole as they are told to be."""

    is_cut = False
    is_broken = False
    is_mutable = False
    """Whether asking changes what its server remembers."""

    def state_use(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> StateUse | None:
        """Say where its state is kept."""
        return StateUse(STATE.slot, is_mutable=self.is_mutable)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the scripted answer, with a state to go on from."""
        whole = await super().answer(call)
        if self.is_broken:
            raise ProviderFailure("it broke", failure_class="terminal", status=400)
        if not self.is_cut:
            return msgspec.structs.replace(whole, state=STATE)
        return msgspec.structs.replace(
            whole, state=STATE, status="incomplete", incomplete_reason="max_output_tokens"
        )

    async def stream(self, call: ModelCall, listener: EventSink) -> Answer:
        """Return the same; how it is told does not matter here."""
        return await self.answer(call)


async def _states(gateway: RunningGateway) -> Sequence[ProviderState]:
    found = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
    assert found is not None
    return await gateway.engine.read.provider_state(found.session.id)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_state_of_a_provider_is_kept_with_a_whole_answer_only(is_stream: bool) -> None:
    model = RememberingModel()
    async with open_gateway(model) as gateway:
        model.is_cut = True
        assert (await gateway.respond("one", stream=is_stream)).status_code == 200
        assert await _states(gateway) == []
        model.is_cut = False
        await gateway.respond("two", stream=is_stream)
        assert [state.value for state in await _states(gateway)] == [STATE.value]
        assert [call.state for call in model.calls] == [None, None]
        await gateway.respond("three", stream=is_stream)
        assert model.calls[-1].state is not None


async def test_what_a_failed_turn_may_have_changed_is_not_gone_on_from() -> None:
    model = RememberingModel()
    model.is_mutable = True
    async with open_gateway(model) as gateway:
        for text in ("one", "two"):
            assert (await gateway.respond(text)).status_code == 200
        model.is_broken = True
        assert (await gateway.respond("three")).status_code == 400
        model.is_broken = False
        for text in ("four", "five"):
            assert (await gateway.respond(text)).status_code == 200
        used = [call.state is not None for call in model.calls]
        assert used == [False, True, True, False, True]


async def test_what_an_interrupted_run_may_have_changed_is_not_gone_on_from(
    store_url: str,
) -> None:
    stopped, model = RememberingModel(), RememberingModel()
    stopped.is_mutable = model.is_mutable = True
    once = {"Idempotency-Key": "two"}
    async with open_gateway(stopped, store_url=store_url) as gateway:
        assert (await gateway.respond("one")).status_code == 200
        await stopped.entered.acquire()
        stopped.gate.clear()
        waiting = asyncio.create_task(gateway.respond("two", headers=once))
        async with asyncio.timeout(60):
            await stopped.entered.acquire()
        await gateway.turn_service.stop(0)
        assert (await waiting).status_code == 503
    assert stopped.calls[-1].state is not None
    async with open_gateway(model, store_url=store_url) as gateway:
        assert (await gateway.respond("two", headers=once)).status_code == 200
        assert (await gateway.respond("three")).status_code == 200
    assert [call.state is not None for call in model.calls] == [False, True]
    assert model.shown[0] == ["one", "re:one", "two"]


async def test_what_a_turn_that_was_rolled_back_may_have_changed_is_not_gone_on_from(
    store_url: str,
) -> None:
    model = RememberingModel()
    model.is_mutable = True
    async with open_gateway(model, store_url=store_url) as gateway:
        assert (await gateway.respond("one")).status_code == 200
        await model.entered.acquire()
        model.gate.clear()
        rollback = {"X-On-Busy": "rollback"}
        async with asyncio.timeout(60):
            second = asyncio.create_task(gateway.respond("two"))
            await model.entered.acquire()
            third = asyncio.create_task(gateway.respond("three", headers=rollback))
            await model.entered.acquire()
        model.gate.set()
        assert [(await second).status_code, (await third).status_code] == [409, 200]
        assert (await gateway.respond("four")).status_code == 200
    assert [call.state is not None for call in model.calls] == [False, True, False, True]
    assert model.shown[2] == ["one", "re:one", "three"]


async def test_what_a_failed_turn_may_have_changed_is_not_gone_on_from_after_an_edit() -> None:
    model = RememberingModel()
    model.is_mutable = True
    async with open_gateway(model) as gateway:
        assert (await gateway.respond("one")).status_code == 200
        model.is_broken = True
        assert (await gateway.respond("two")).status_code == 400
        model.is_broken = False
        history = [{"role": "user", "content": "one"}, said("re:one")]
        edited = [*history, {"role": "user", "content": "three"}]
        assert (await gateway.respond(edited)).status_code == 200
        assert await gateway.log() == ["one", "re:one", "three", "re:three"]
    assert [call.state is not None for call in model.calls] == [False, True, False]


async def test_calls_of_an_answer_that_is_not_whole_are_not_waited_for() -> None:
    def script(items: list[Item]) -> list[Item]:
        is_first = len(items) == 1
        return [called("look", "call_1")] if is_first else [said("fine")]

    model = RememberingModel(script)
    model.is_cut = True
    async with open_gateway(model) as gateway:
        cut = (await gateway.respond("one")).json()
        assert (cut["status"], cut["output"][0]["type"]) == ("incomplete", "function_call")
        found = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
        assert found is not None
        assert found.status == "idle"
        # The lane is free: nothing has to wait for an output that may never come.
        assert (await gateway.respond("two", headers={"X-On-Busy": "reject"})).status_code == 200


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("body", ["", "{}", "[]", "null", '{"detail":"Not Found"}', "Not Found"])
async def test_a_success_that_is_no_answer_is_an_error_and_no_empty_answer(
    body: str, api: str, *, is_stream: bool
) -> None:
    def say(path: str, _: Item) -> Reply:
        return web.Response(text=body, content_type="application/json")

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api=api), heals=QUICK) as gateway,
    ):
        answer = await gateway.post("/v1/responses", input="one", stream=is_stream)
        if is_stream:
            assert read(answer)["status"] == "failed"
        else:
            assert answer.status_code == 502
            assert answer.json()["error"]["code"].startswith("upstream_")


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_after_two_broken_streams_the_next_answer_is_shown_once_it_is_whole(
    api: str,
) -> None:
    chat: list[Item] = [{"choices": [{"index": 0, "delta": {"content": "I th"}}]}]
    begun: list[Item] = [
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m1",
         "content_index": 0, "delta": "I th"},
    ]  # fmt: skip

    def say(path: str, body: Item) -> Reply:
        if "odd" in str(body):
            error = {"message": "It broke.", "code": "server_error"}
            return [*(chat if api == "chat" else begun), {"type": "error", "error": error}]
        if api == "chat":
            return [
                {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}
            ]
        return [{"type": "response.completed", "response": whole(saying("ok"))}]

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api=api), heals=QUICK) as gateway,
    ):
        said = [
            (await gateway.post("/v1/responses", input=text, stream=True)).text
            for text in ("odd", "two", "three", "four")
        ]
    assert ["I th" in text for text in said] == [True, True, False, False]
    assert [read_end(text) for text in said] == ["failed", "failed", "completed", "completed"]


def read_end(text: str) -> str:
    """Return how a stream ended."""
    kinds = [line[7:] for line in text.splitlines() if line.startswith("event: response.")]
    return kinds[-1].rpartition(".")[2]
