"""A turn is interrupted while its tools run; its request is sent again, and no tool runs twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId
from holdfast.core.model.items import message
from holdfast.core.model.synthetic_outputs import OUTCOME_UNKNOWN
from holdfast.core.transaction.commands import Accept, Finish, Started
from holdfast.engine.settings import ToolSettings
from holdfast.ports.store import ItemQuery
from tests.in_process import (
    Item,
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)
from tests.tools.toolboxes import SERVER, Gate, RecordingTools, echo

AGAIN = {"Idempotency-Key": "once"}


def _calls_one_after_the_other(*names: str) -> ScriptedModel:
    """Return a model that makes a call for each output that it has not seen, then answers."""

    def script(items: list[Item]) -> list[Item]:
        known = {item["call_id"] for item in items if item["type"] == "function_call"}
        for name in names:
            if f"c_{name}" not in known:
                return [called(f"desk__{name}", f"c_{name}")]
        return [said("done")]

    return ScriptedModel(script)


@asynccontextmanager
async def _interrupted(
    store_url: str, tools: RecordingTools, gate: Gate, body: Any
) -> AsyncIterator[None]:
    """Stop a gateway cleanly while the tool `slow` runs for a request."""
    model = _calls_one_after_the_other("slow")
    async with open_gateway(model, store_url=store_url, toolbox=lambda _: tools) as gateway:
        waiting = asyncio.create_task(_send(gateway, body))
        async with asyncio.timeout(60):
            await gate.entered.wait()
        await gateway.turn_service.stop(0)
        assert (await waiting).status_code == 503
    yield


async def _send(gateway: RunningGateway, body: Any, **more: Any) -> httpx.Response:
    return await gateway.respond(body, tools=[SERVER], headers=AGAIN, **more)


def _names(tools: RecordingTools) -> list[str]:
    return [name for name, _ in tools.calls]


@pytest.mark.parametrize("is_safe", [False, True], ids=["unsafe", "safe"])
async def test_a_call_that_a_stop_interrupted_runs_again_only_if_it_is_safe(
    store_url: str, *, is_safe: bool
) -> None:
    gate = Gate()
    tools = RecordingTools(slow=gate, echo=echo)
    tools.safe = {"slow"} if is_safe else set()
    async with _interrupted(store_url, tools, gate, "go"):
        gate.opened.set()
        model = _calls_one_after_the_other("slow", "echo")
        async with open_gateway(model, store_url=store_url, toolbox=lambda _: tools) as gateway:
            reply = await _send(gateway, "go")
    assert reply.status_code == 200, reply.text
    assert _names(tools) == (["slow", "slow", "echo"] if is_safe else ["slow", "echo"])
    output = "=opened" if is_safe else f"={OUTCOME_UNKNOWN}"
    assert model.shown == [
        ["go", "desk__slow()", output],
        ["go", "desk__slow()", output, "desk__echo()", "={}"],
    ]


async def test_an_approved_call_that_a_stop_interrupted_does_not_run_again(store_url: str) -> None:
    gate = Gate()
    tools = RecordingTools(slow=gate, echo=echo)
    tools.approved = {"slow"}
    model = _calls_one_after_the_other("slow")
    async with open_gateway(model, store_url=store_url, toolbox=lambda _: tools) as gateway:
        asked = (await gateway.respond("go", tools=[SERVER])).json()
        (request,) = [each for each in asked["output"] if each["type"] == "mcp_approval_request"]
    answer = {
        "type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True,
    }  # fmt: skip
    async with _interrupted(store_url, tools, gate, [answer]):
        gate.opened.set()
        model = _calls_one_after_the_other("slow", "echo")
        async with open_gateway(model, store_url=store_url, toolbox=lambda _: tools) as gateway:
            reply = await _send(gateway, [answer])
    assert reply.status_code == 200, reply.text
    assert _names(tools) == ["slow", "echo"]
    assert model.shown[0] == ["go", "desk__slow()", f"={OUTCOME_UNKNOWN}"]


async def test_a_call_whose_output_was_hidden_does_not_run_again(store_url: str) -> None:
    tools = RecordingTools(first=echo, second=echo)
    script = _calls_one_after_the_other("first").script

    def fails_at_the_end(items: list[Item]) -> list[Item]:
        if items[-1]["type"] == "function_call_output":
            raise ProviderFailure("busy", failure_class="transient")
        return script(items)

    model = ScriptedModel(fails_at_the_end)
    async with open_gateway(model, store_url=store_url, toolbox=lambda _: tools) as gateway:
        failed = await _send(gateway, "go")
        assert failed.status_code >= 500, failed.text
        await _hide_last_item(gateway)
        model.script = _calls_one_after_the_other("first", "second").script
        reply = await _send(gateway, "go")
    assert reply.status_code == 200, reply.text
    assert _names(tools) == ["first", "second"]
    assert f"={OUTCOME_UNKNOWN}" in model.shown[-1]


@pytest.mark.parametrize("limit", ["steps", "calls", "compacted"])
async def test_a_turn_that_is_resumed_goes_on_counting_its_steps_and_calls(
    store_url: str, limit: str
) -> None:
    """The model fails after two calls that were answered, and the request is sent again."""

    async def large(_: dict[str, object]) -> str:
        return "word " * 400

    is_failing = True

    def script(items: list[Item]) -> list[Item]:
        if text_of(items[0]) != "go":
            return [said("a summary")]
        if is_failing and len(tools.calls) == 2:
            raise ProviderFailure("busy", failure_class="transient")
        return [called("desk__large", f"c{len(tools.calls)}")]

    tools = RecordingTools(large=large)
    settings = ToolSettings(max_tool_steps=32 if limit == "calls" else 3)
    more = {"max_tool_calls": 3} if limit == "calls" else {}
    async with open_gateway(
        ScriptedModel(script), store_url=store_url, toolbox=lambda _: tools, tools=settings,
        window=900 if limit == "compacted" else None,
    ) as gateway:  # fmt: skip
        failed = await _send(gateway, "go", **more)
        assert failed.status_code >= 500, failed.text
        is_failing = False
        reply = await _send(gateway, "go", **more)
    assert reply.status_code == 200, reply.text
    assert len(tools.calls) == 3


async def _hide_last_item(gateway: RunningGateway) -> None:
    """Take a turn that hides the last item of the log, and end it."""
    engine = gateway.engine
    found = await engine.read.session(DEFAULT_TENANT, key=Key("k"))
    assert found is not None
    last = (await engine.read.items(found.session, ItemQuery()))[-1]
    assert last.kind == "gateway_call_output"
    started = await engine.submit(
        Accept(
            tenant=DEFAULT_TENANT,
            turn_id=TurnId("turn_edit"),
            run_id=RunId("run_edit"),
            worker=engine.worker.id,
            candidate_id=SessionId("ses_edit"),
            key=Key("k"),
            items=(message("user", "another way"),),
            request=msgspec.json.encode(None),
            rewind=(last.seq - 1, last.seq),
            limits=engine.limits,
        )
    )
    assert isinstance(started, Started)
    await engine.submit(Finish(fence=started.fence, outcome="completed"))
