"""What an agent asks permission for is a person's decision, as for tools."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.providers.settings import AgentRuntime, UpstreamSettings
from tests.cli_agents import programs
from tests.cli_agents.agents import heals, open_agent_gateway, processes_of
from tests.integration.upstream_gateway import UpstreamGateway, text_of

Json = dict[str, Any]
MODEL = "acp/asking"
PROGRAM = Path(__file__).with_name("asking_agent.py")


def asking(root: Path, **more: Any) -> UpstreamSettings:
    """Return an agent that asks for permission as an upstream."""
    programs.bubblewrap()
    settings = {
        "name": "asking",
        "api": "acp",
        "command": str(PROGRAM),
        "models": (MODEL,),
        "permissions": "write",
        "sandbox": True,
        "runtime": AgentRuntime(root=root, environment={"PATH": "/usr/local/bin:/usr/bin:/bin"}),
    }
    return UpstreamSettings(**{**settings, **more})


def made(root: Path) -> list[Path]:
    """Return the files that the agent made."""
    return list(root.glob("asking/*/work/made.txt"))


def kinds(answer: Json) -> list[str]:
    """Return the types of the items of an answer."""
    return [item["type"] for item in answer["output"]]


async def reply(gateway: UpstreamGateway, answer: Json, *, approve: bool, **more: Any) -> Json:
    """Answer the approval request at the end of an answer; return the next answer."""
    response = {
        "type": "mcp_approval_response",
        "approval_request_id": answer["output"][-1]["id"],
        "approve": approve,
    }
    return await gateway.respond([response], model=MODEL, **more)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_of_an_agent_waits_for_a_person_and_then_goes_on(
    root: Path, *, is_stream: bool
) -> None:
    async with open_agent_gateway(asking(root)) as gateway:
        asked = await gateway.respond("make", model=MODEL, stream=is_stream)
        assert kinds(asked) == ["message", "mcp_approval_request"]
        request = asked["output"][1]
        assert (request["server_label"], request["name"]) == ("asking", "make a file")
        assert '"command":"touch made.txt"' in request["arguments"]
        (waiting,) = (await gateway.client.get("/v1/approvals")).json()["data"]
        assert waiting["id"] == request["id"]
        before = processes_of(root)
        assert before
        assert made(root) == []
        answer = await reply(gateway, asked, approve=True, stream=is_stream)
        assert kinds(answer) == ["mcp_call", "agent_tool_call", "message"]
        assert answer["output"][0]["approval_request_id"] == request["id"]
        assert text_of(answer) == "Chosen: once."
        assert len(made(root)) == 1
        assert processes_of(root) == before
        assert await heals(gateway) == []
        if is_stream:
            stored = await gateway.client.get(f"/v1/responses/{answer['id']}")
            assert stored.json()["output"] == answer["output"]
        after = await gateway.respond("thanks", model=MODEL)
        assert text_of(after) == "You said: thanks"
        assert processes_of(root) == before


async def test_what_a_person_denies_does_not_happen_and_the_agent_is_told(root: Path) -> None:
    async with open_agent_gateway(asking(root)) as gateway:
        asked = await gateway.respond("make", model=MODEL)
        answer = await reply(gateway, asked, approve=False)
        assert text_of(answer) == "Chosen: no."
        assert "not approved" in answer["output"][0]["error"]
        assert made(root) == []


async def test_an_agent_whose_process_ended_asks_again(root: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"
    async with open_agent_gateway(asking(root), store_url=store) as gateway:
        asked = await gateway.respond("make", model=MODEL)
    assert processes_of(root) == []
    async with open_agent_gateway(asking(root), store_url=store) as gateway:
        again = await reply(gateway, asked, approve=True)
        # The approval was for a call of a process that is gone: nothing has run.
        assert kinds(again) == ["mcp_call", "message", "mcp_approval_request"]
        assert made(root) == []
        answer = await reply(gateway, again, approve=True)
        assert text_of(answer) == "Chosen: once."
        assert len(made(root)) == 1
        assert await heals(gateway) == ["agent_session_not_found"]


async def test_a_new_message_instead_of_an_answer_means_no(root: Path) -> None:
    async with open_agent_gateway(asking(root)) as gateway:
        await gateway.respond("make", model=MODEL)
        answer = await gateway.respond("never mind", model=MODEL)
        assert text_of(answer) == "You said: never mind"
        assert (await gateway.client.get("/v1/approvals")).json()["data"] == []
        assert made(root) == []


async def test_a_chat_client_answers_in_words(root: Path) -> None:
    async with open_agent_gateway(asking(root)) as gateway:
        asked = text_of(await gateway.chat("make", model=MODEL))
        (waiting,) = (await gateway.client.get("/v1/approvals")).json()["data"]
        assert waiting["code"] in asked
        assert "touch made.txt" in asked
        messages = [
            {"role": "user", "content": "make"},
            {"role": "assistant", "content": asked},
            {"role": "user", "content": f"yes {waiting['code']}"},
        ]
        answer = await gateway.chat(messages, model=MODEL)
        assert text_of(answer) == "Chosen: once."
        assert len(made(root)) == 1


async def test_an_agent_without_tools_is_refused_at_once(root: Path) -> None:
    async with open_agent_gateway(asking(root, permissions="none")) as gateway:
        answer = await gateway.respond("make", model=MODEL)
        assert kinds(answer) == ["message", "agent_tool_call", "message"]
        assert text_of(answer) == "Working.Chosen: no."
        assert made(root) == []


async def test_a_process_that_waits_for_a_person_makes_room_last(root: Path) -> None:
    async with open_agent_gateway(asking(root, max_processes=2)) as gateway:
        asked = await gateway.respond("make", "a", model=MODEL)
        for key in "bc":
            await gateway.respond("hello", key, model=MODEL)
        response = {
            "type": "mcp_approval_response",
            "approval_request_id": asked["output"][-1]["id"],
            "approve": True,
        }
        answer = await gateway.respond([response], "a", model=MODEL)
        assert text_of(answer) == "Chosen: once."


async def test_of_two_answers_at_once_the_agent_gets_the_first(root: Path) -> None:
    async with open_agent_gateway(asking(root)) as gateway:
        asked = await gateway.respond("make", model=MODEL)
        path = f"/v1/approvals/{asked['output'][-1]['id']}"
        answers = await asyncio.gather(
            *(gateway.client.post(path, json={"approve": True}) for _ in range(3))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 404, 404]
        await gateway.respond("and now?", model=MODEL)
        assert len(made(root)) == 1
