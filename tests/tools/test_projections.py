"""What the model was shown in turns with gateway tools: each of its calls, with its proof."""

from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.tools.approvals import guarded_tools
from tests.tools.toolboxes import SERVER, RecordingTools

Json = dict[str, Any]
CALLS = 2


def _calls_twice(items: list[Item]) -> list[Item]:
    """Call the tool twice for each question, then answer."""
    outputs = sum(item.get("type") == "function_call_output" for item in items)
    questions = sum(item.get("role") == "user" for item in items)
    if outputs >= CALLS * questions:
        return [said("fine")]
    return [called("desk__echo", f"c{outputs}", "{}")]


async def _last_turn(gateway: RunningGateway) -> str:
    session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    return str(session["last_turn"]["id"])


async def _projection(gateway: RunningGateway, turn_id: str, **query: Any) -> Json:
    answer = await gateway.client.get(f"/v1/turns/{turn_id}/projection", params=query)
    assert answer.status_code == 200, answer.text
    value: Json = answer.json()
    return value


def _kinds(projection: Json) -> list[str]:
    return [item.get("type", "message") for item in projection["request"]["input"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_call_of_a_turn_is_shown_and_proven(*, stream: bool) -> None:
    model = ScriptedModel(_calls_twice)
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        for text in ("one", "two"):
            await gateway.respond(text, tools=[SERVER], temperature=0.5, stream=stream)
        turn = await _last_turn(gateway)
        last = await _projection(gateway, turn)
        found = [await _projection(gateway, turn, attempt=number) for number in (1, 2, 3)]
        beyond = await gateway.client.get(f"/v1/turns/{turn}/projection?attempt=4")
    assert [one["proof"]["is_same"] for one in found] == [True, True, True]
    assert last == found[-1]
    assert beyond.status_code == 404
    assert [len(call.items) for call in model.calls[3:]] == [len(_kinds(one)) for one in found]
    assert _kinds(found[0])[-1:] == ["message"]
    assert _kinds(found[1])[-2:] == ["function_call", "function_call_output"]
    assert _kinds(found[2])[-4:] == ["function_call", "function_call_output"] * 2
    assert [one["outcome"] for one in last["attempts"]] == ["completed"] * 3
    recorded = [one["proof"]["recorded"] for one in found]
    assert [one["digest"] for one in last["attempts"]] == recorded
    # Each call is compared with the one before it.
    assert [one["difference"]["counts"]["added"] for one in found[1:]] == [2, 2]
    assert found[1]["difference"]["previous_turn_id"] == turn


async def test_a_failed_call_between_others_is_shown_in_its_place() -> None:
    failure = ProviderFailure("try later", status=503, failure_class="transient", retry_after=0.001)
    failures = iter([None, failure])

    def script(items: list[Item]) -> list[Item]:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return _calls_twice(items)

    async with open_gateway(ScriptedModel(script), toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("one", tools=[SERVER])
        turn = await _last_turn(gateway)
        found = [await _projection(gateway, turn, attempt=number) for number in (1, 2, 3, 4)]
    outcomes = [one["outcome"] for one in found[0]["attempts"]]
    assert outcomes == ["completed", "failed", "completed", "completed"]
    assert [one["proof"]["is_same"] for one in found] == [True] * 4
    assert [len(_kinds(one)) for one in found] == [1, 3, 3, 5]


async def test_a_call_that_waits_for_an_approval_is_proven_as_well() -> None:
    async with open_gateway(
        ScriptedModel(_calls_twice), toolbox=lambda _: guarded_tools()
    ) as gateway:
        answer = (await gateway.respond("one", tools=[SERVER])).json()
        for _ in range(CALLS):
            request = next(
                item for item in answer["output"] if item["type"] == "mcp_approval_request"
            )
            reply = {
                "type": "mcp_approval_response",
                "approval_request_id": request["id"],
                "approve": True,
            }
            answer = (await gateway.respond([reply], tools=[SERVER])).json()
        turn = await _last_turn(gateway)
        last = await _projection(gateway, turn)
        count = len(last["attempts"])
        found = [await _projection(gateway, turn, attempt=n + 1) for n in range(count)]
        by_step = [await _projection(gateway, turn, step=step) for step in range(CALLS + 1)]
    assert count == CALLS + 1
    assert [one["proof"]["is_same"] for one in found] == [True] * count
    assert by_step == found
