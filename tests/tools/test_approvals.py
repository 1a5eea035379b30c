"""Calls that a person must approve before they run."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.tools.approval_words import read_answer
from holdfast.engine.settings import ToolSettings
from holdfast.engine.turns import approvals
from holdfast.engine.turns.approvals import MAX_SESSIONS
from holdfast.testing.store_client import StoreClient
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.tools.approvals import chat_text, guarded_tools, pending_approvals
from tests.tools.toolboxes import SERVER


def _model(text: str = "") -> ScriptedModel:
    """Return a model that calls a tool on "go", and answers everything else."""

    def script(items: list[Item]) -> list[Item]:
        last = items[-1]
        if last.get("type") == "message" and "go" in str(last["content"]):
            begin = [said(text)] if text else []
            return [*begin, called("desk__echo", "c1", '{"n":1}')]
        return [said("done")]

    return ScriptedModel(script)


async def _ended(gateway: RunningGateway, turn_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            turn: dict[str, Any] = (await gateway.client.get(f"/v1/turns/{turn_id}")).json()
            if turn["status"] not in ("queued", "running"):
                return turn
            await asyncio.sleep(0.01)


async def test_a_call_waits_for_its_approval_and_then_runs_once() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("go", tools=[SERVER])).json()
        request = answer["output"][0]
        assert request["type"] == "mcp_approval_request"
        assert (request["server_label"], request["name"]) == ("desk", "echo")
        assert request["arguments"] == '{"n":1}'
        assert not tools.calls
        reply = {"type": "mcp_approval_response", "approval_request_id": request["id"],
                 "approve": True}  # fmt: skip
        body = {"model": "scripted", "input": [reply], "tools": [SERVER],
                "previous_response_id": answer["id"]}  # fmt: skip
        last = (await gateway.client.post("/v1/responses", json=body)).json()
    call, message = last["output"]
    assert call["type"] == "mcp_call"
    assert call["approval_request_id"] == request["id"]
    assert call["output"] == '{"n":1}'
    assert message["content"][0]["text"] == "done"
    assert tools.calls == [("echo", {"n": 1})]


async def test_a_denied_call_does_not_run_and_the_model_learns_why() -> None:
    tools, model = guarded_tools(), _model()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("go", tools=[SERVER])).json()
        reply = {"type": "mcp_approval_response", "approve": False, "reason": "too risky",
                 "approval_request_id": answer["output"][0]["id"]}  # fmt: skip
        last = (await gateway.respond([reply], tools=[SERVER])).json()
    assert not tools.calls
    assert last["output"][0]["error"].endswith("Reason: too risky")
    assert "not approved" in model.shown[-1][-1]


@pytest.mark.parametrize(
    ("limit", "characters", "expected"),
    [
        (2, 1_000_000, [["k4", "k3"], ["k2", "k1"], ["k0"]]),
        (100, 1, [["k4"], ["k3"], ["k2"], ["k1"], ["k0"]]),
    ],
    ids=["by number", "by size"],
)
async def test_pages_of_approvals_together_have_every_one_once(
    monkeypatch: pytest.MonkeyPatch, limit: int, characters: int, expected: list[list[str]]
) -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        for number in range(5):
            await gateway.respond("go", f"k{number}", tools=[SERVER])
        whole = await pending_approvals(gateway)
        monkeypatch.setattr(approvals, "MAX_PAGE_CHARACTERS", characters)
        pages: list[list[str]] = []
        query: dict[str, str | int] = {"limit": limit}
        while True:
            page = (await gateway.client.get("/v1/approvals", params=query)).json()
            pages.append([each["key"] for each in page["data"]])
            assert page["has_more"] == (page["next_after"] is not None)
            if not page["has_more"]:
                break
            query["after"] = page["next_after"]
        wrong = await gateway.client.get("/v1/approvals", params={"after": "mcpr_1"})
        nothing = await gateway.client.get("/v1/approvals", params={"key": "other"})
    assert pages == expected
    assert [each["key"] for each in whole] == ["k4", "k3", "k2", "k1", "k0"]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")
    assert nothing.json() == {"object": "list", "data": [], "has_more": False, "next_after": None}


async def test_the_approvals_of_one_session_are_found_however_many_sessions_run(
    any_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MAX_SESSIONS", 0)

    async with open_gateway(
        _model(), store_url=any_store_url, toolbox=lambda _: guarded_tools()
    ) as gateway:

        async def listed(**query: str) -> Any:
            return (await gateway.client.get("/v1/approvals", params=query)).json()

        for number in range(3):
            await gateway.respond("go", f"k{number}", tools=[SERVER])
        assert (await listed())["data"] == [], "a page of the tenant does not reach them"
        session = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k1"))
        assert session is not None
        own = str(session.session.id)
        page = await listed(session_id=own, limit="1")
        assert [(each["key"], each["session_id"]) for each in page["data"]] == [("k1", own)]
        assert (page["has_more"], page["next_after"]) == (False, None)
        assert await listed(session_id=own, key="k1") == page
        for query in ({"session_id": own, "key": "k2"}, {"session_id": "ses_unknown"}):
            assert (await listed(**query))["data"] == []
        for param, query in (
            ("session_id", {"session_id": "k1"}),
            ("after", {"session_id": own, "after": own}),
        ):
            assert (await listed(**query))["error"]["param"] == param
        reply = await gateway.client.post("/v1/keys", json={"admin": True})
        admin = {"Authorization": f"Bearer {reply.json()['key']}"}
        reply = await gateway.client.post("/v1/keys", json={"tenant": "other"}, headers=admin)
        foreign = {"Authorization": f"Bearer {reply.json()['key']}"}
        hidden = await gateway.client.get(
            "/v1/approvals", params={"session_id": own}, headers=foreign
        )
        assert (hidden.status_code, hidden.json()["data"]) == (200, [])


async def test_a_page_that_looked_at_many_sessions_says_where_the_next_one_begins() -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        await gateway.respond("go", "last", tools=[SERVER])
        other = StoreClient(gateway.engine.store, "zzz")  # its ids are listed first
        await other.enlist(lease_seconds=3600.0)
        for number in range(MAX_SESSIONS):
            await other.start("run", key=f"busy{number}")
        first = (await gateway.client.get("/v1/approvals")).json()
        assert (first["data"], first["has_more"]) == ([], True)
        query = {"after": first["next_after"]}
        second = (await gateway.client.get("/v1/approvals", params=query)).json()
    assert [each["key"] for each in second["data"]] == ["last"]
    assert not second["has_more"]


async def test_an_approval_can_be_given_through_the_api() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        await gateway.respond("go", tools=[SERVER])
        (waiting,) = await pending_approvals(gateway)
        assert (waiting["name"], waiting["arguments"], waiting["key"]) == ("echo", '{"n":1}', "k")
        reply = await gateway.client.post(f"/v1/approvals/{waiting['id']}", json={"approve": True})
        assert reply.status_code == 200
        assert (await _ended(gateway, reply.json()["turn_id"]))["status"] == "completed"
        stored = (await gateway.client.get(f"/v1/responses/{reply.json()['response_id']}")).json()
        assert stored["output"][0]["output"] == '{"n":1}'
        assert not await pending_approvals(gateway)
        again = await gateway.client.post(f"/v1/approvals/{waiting['id']}", json={"approve": True})
    assert again.status_code == 404
    assert again.json()["error"]["code"] == "approval_not_found"
    assert tools.calls == [("echo", {"n": 1})]


async def test_of_answers_to_two_replicas_at_once_the_first_wins(store_url: str) -> None:
    tools = guarded_tools()
    here = open_gateway(_model(), store_url=store_url, toolbox=lambda _: tools)
    there = open_gateway(_model(), store_url=store_url, toolbox=lambda _: tools)
    async with here as gateway, there as other:
        await gateway.respond("go", tools=[SERVER])
        (waiting,) = await pending_approvals(other)
        path = f"/v1/approvals/{waiting['id']}"
        asked = [gateway, other] * 3
        replies = await asyncio.gather(
            *(each.client.post(path, json={"approve": True}) for each in asked)
        )
        assert sorted(reply.status_code for reply in replies) == [200, *[404] * 5]
        await _ended(gateway, waiting["turn_id"])
    assert len(tools.calls) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_has_only_words_answers_with_a_code(*, is_stream: bool) -> None:
    tools, model = guarded_tools(), _model("Working.")
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        messages: list[Item] = [{"role": "user", "content": "go"}]
        asked = chat_text(await gateway.chat(messages, tools=[SERVER], stream=is_stream))
        (waiting,) = await pending_approvals(gateway)
        assert waiting["code"] in asked
        assert asked.startswith("Working.\n\nApproval needed: desk wants to run echo")
        # The client sends its whole history, what we told it included.
        messages += [
            {"role": "assistant", "content": asked},
            {"role": "user", "content": f"yes {waiting['code'].lower()}"},
        ]
        done = chat_text(await gateway.chat(messages, tools=[SERVER], stream=is_stream))
        assert done == "done"
        assert tools.calls == [("echo", {"n": 1})]
        messages += [
            {"role": "assistant", "content": done},
            {"role": "user", "content": "thanks"},
        ]
        await gateway.chat(messages, tools=[SERVER], stream=is_stream)
    assert model.shown[-1] == [
        "go", "Working.", "desk__echo()", '={"n":1}', "done", "thanks",
    ]  # fmt: skip


async def test_a_new_message_of_the_sender_means_no() -> None:
    tools, model = guarded_tools(), _model()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        first = (await gateway.respond("go", tools=[SERVER])).json()
        answer = (await gateway.respond("never mind", tools=[SERVER])).json()
        assert answer["output"][0]["content"][0]["text"] == "done"
        assert not await pending_approvals(gateway)
        stored = (await gateway.client.get(f"/v1/responses/{first['id']}")).json()
    assert not tools.calls
    assert stored["status"] == "completed"
    assert model.shown[-1][0] == "go"
    assert model.shown[-1][-1] == "never mind"


async def test_without_an_approver_a_call_is_denied_at_once() -> None:
    tools, model = guarded_tools(), _model()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        asked = TurnRequest(
            api="responses", model="scripted", fields={"tools": msgspec.Raw(json.dumps([SERVER]))}
        )
        client = StoreClient(gateway.engine.store, "cron")
        accept = client.arrival("go", key="k", source="cron", request=write_request(asked))
        ticket = await gateway.turn_service.accept(accept, asked, is_live=False)
        result = await ticket.answer()
    assert result.turn.outcome == "completed"
    assert tools.calls == []
    assert model.shown[-1][-1].endswith("it needs an approval, and nobody is there to give it.")


async def test_a_wrong_code_approves_nothing() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        await gateway.respond("go", tools=[SERVER])
        await gateway.respond("yes 0000", tools=[SERVER])
    assert not tools.calls


async def test_only_the_sender_may_answer() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        key = (await gateway.client.post("/v1/keys", json={"admin": True})).json()["key"]
        admin = {"Authorization": f"Bearer {key}"}
        other = (await gateway.client.post("/v1/keys", json={}, headers=admin)).json()["key"]
        bearer = {"Authorization": f"Bearer {other}"}
        await gateway.respond("go", tools=[SERVER], headers=bearer)
        (waiting,) = (await gateway.client.get("/v1/approvals", headers=bearer)).json()["data"]
        path = f"/v1/approvals/{waiting['id']}"
        # Not even an admin key, unless the operator made it an approver.
        refused = await gateway.client.post(path, json={"approve": True}, headers=admin)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "approval_forbidden"
        item = {"type": "mcp_approval_response", "approval_request_id": waiting["id"],
                "approve": True}  # fmt: skip
        forged = await gateway.respond([item], tools=[SERVER], headers=admin)
        assert forged.status_code == 403
        assert not tools.calls
        allowed = await gateway.client.post(path, json={"approve": True}, headers=bearer)
        assert allowed.status_code == 200
        async with asyncio.timeout(60):
            while True:
                if tools.calls:
                    break
                await asyncio.sleep(0.01)


async def test_another_tenant_does_not_see_what_waits() -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        await gateway.respond("go", tools=[SERVER])
        (waiting,) = await pending_approvals(gateway)
        key = (await gateway.client.post("/v1/keys", json={"admin": True})).json()["key"]
        made = await gateway.client.post(
            "/v1/keys", json={"tenant": "acme"}, headers={"Authorization": f"Bearer {key}"}
        )
        foreign = {"Authorization": f"Bearer {made.json()['key']}"}
        listed = (await gateway.client.get("/v1/approvals", headers=foreign)).json()
        reply = await gateway.client.post(
            f"/v1/approvals/{waiting['id']}", json={"approve": True}, headers=foreign
        )
    assert listed["data"] == []
    assert reply.status_code == 404


async def test_a_tool_that_changed_since_it_was_shown_does_not_run() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("go", tools=[SERVER])).json()
        tools.digest = "another"
        reply = {"type": "mcp_approval_response", "approve": True,
                 "approval_request_id": answer["output"][0]["id"]}  # fmt: skip
        last = (await gateway.respond([reply], tools=[SERVER])).json()
    assert not tools.calls
    assert "changed after the approval" in last["output"][0]["error"]


async def test_an_approval_that_comes_too_late_runs_nothing() -> None:
    tools = guarded_tools()
    settings = ToolSettings(approval_seconds=0.05)
    async with open_gateway(_model(), toolbox=lambda _: tools, tools=settings) as gateway:
        answer = (await gateway.respond("go", tools=[SERVER])).json()
        async with asyncio.timeout(60):
            while True:
                if not await pending_approvals(gateway):
                    break
                await asyncio.sleep(0.01)
        path = f"/v1/approvals/{answer['output'][0]['id']}"
        reply = await gateway.client.post(path, json={"approve": True})
    assert reply.status_code == 404
    assert not tools.calls


async def test_a_stream_shows_a_request_for_an_approval() -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        body = {"model": "scripted", "input": "go", "stream": True, "tools": [SERVER]}
        headers = {"X-Session-Key": "k"}
        text = (await gateway.client.post("/v1/responses", json=body, headers=headers)).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"]["type"] for event in done] == ["mcp_approval_request"]
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == [done[0]["item"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes 4F7K", (True, "4F7K")), (" Yes, 4f7k. ", (True, "4F7K")),
        ("no 4F7K", (False, "4F7K")), ("DENY: 4F7K", (False, "4F7K")),
        ("`yes 4F7K`", (True, "4F7K")), ("no `4F7K`", (False, "4F7K")),
        ('"Yes 4f7k"', (True, "4F7K")),
        ("yes", None), ("yes please", None), ("is it yes 4F7K?", None), ("yes 4F7K now", None),
    ],
)  # fmt: skip
def test_an_answer_names_its_code(text: str, expected: tuple[bool, str] | None) -> None:
    assert read_answer(text) == expected
