"""Tools of the gateway and a model that takes none, as a command-line agent."""

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId
from holdfast.core.model.items import message
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.tools.requested import add_tools
from holdfast.core.transaction.commands import Accept
from holdfast.ports.provider import ModelCall
from holdfast.providers.cli_agents.params import check_fields
from holdfast.providers.settings import UpstreamSettings
from tests.in_process import Item, ScriptedModel, open_gateway
from tests.tools.toolboxes import SERVER, RecordingTools


class _Agent(ScriptedModel):
    """A model that refuses what a command-line agent refuses."""

    def check(self, call: ModelCall) -> None:
        check_fields(call.fields, call.chat_fields, self.name)


@pytest.mark.parametrize("tool", [SERVER, {"type": "holdfast", "name": "session_status"}])
async def test_a_request_for_an_agent_with_tools_of_the_gateway_is_refused(tool: Item) -> None:
    model, toolbox = _Agent(), RecordingTools()
    async with open_gateway(model, toolbox=lambda _: toolbox) as gateway:
        answers = [
            await gateway.respond("hi", tools=[tool]),
            await gateway.respond("hi", tools=[tool], stream=True),
            await gateway.chat([{"role": "user", "content": "hi"}], tools=[tool]),
        ]
        assert (await gateway.respond("hi")).status_code == 200
    for answer in answers:
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "tools"
        assert "is an agent with tools of its own" in error["message"]


async def test_tools_of_a_schedule_are_left_out_for_an_agent() -> None:
    model, toolbox = _Agent(), RecordingTools()
    request = add_tools(TurnRequest(api="responses", model="scripted"), ["mcp:desk"])
    async with open_gateway(model, toolbox=lambda _: toolbox) as gateway:
        engine = gateway.engine
        accept = Accept(
            tenant=DEFAULT_TENANT,
            turn_id=TurnId("turn_1"),
            run_id=RunId("run_1"),
            worker=engine.worker.id,
            candidate_id=SessionId("ses_1"),
            key=Key("k"),
            request=write_request(request),
            source="cron",
            items=(message("user", "hi"),),
            limits=engine.limits,
        )
        ticket = await gateway.turn_service.accept(accept, request, is_live=False)
        await ticket.answer()
        assert await gateway.log() == ["hi", "re:hi"]
    assert "tools" not in model.calls[0].fields


def test_the_upstream_of_an_agent_has_no_tools_of_the_gateway() -> None:
    with pytest.raises(InvalidSetting, match="takes no tools of the gateway"):
        UpstreamSettings(name="coder", api="codex", tools=("memory_search",))
