"""Codex behind the gateway, with the real program and the simulator as its model."""

import shutil
from pathlib import Path

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator, RecordedRequest
from tests.cli_agents.agents import (
    agent_session,
    codex,
    heals,
    open_agent_gateway,
    processes_of,
    until,
)
from tests.integration.upstream_gateway import text_of

MODEL = "codex/gpt-5.4"
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
pytestmark = pytest.mark.timeout(600)  # the first run installs the program


def texts(request: RecordedRequest) -> str:
    """Return all texts of a request to the Responses API."""
    return "\n".join(
        part["text"]
        for item in request.body["input"]
        for part in item.get("content") or ()
        if "text" in part
    )


def rollout_folders(root: Path) -> list[Path]:
    """Return the folders of the agent's own transcripts."""
    return list(root.glob("codex/*/config/sessions"))


def cut_beginnings(root: Path) -> None:
    """Delete the first line of each transcript, which names its thread, and all indexes."""
    for database in list(root.glob("codex/*/config/*.sqlite*")):
        database.unlink()
    for rollout in root.glob("codex/*/config/sessions/**/*.jsonl"):
        rollout.write_text(rollout.read_text().partition("\n")[2])


async def test_a_conversation_is_one_thread_of_the_agent(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret of the gateway")
    async with open_agent_gateway(codex(simulator, root)) as gateway:
        first = await gateway.respond(f"see @{secret}", model=MODEL, instructions="Be a pirate.")
        assert text_of(first).endswith(f"Last text: see @{secret}")
        assert first["usage"]["input_tokens"] > 10
        second = await gateway.respond("/compact", model=MODEL, stream=True)
        assert text_of(second).endswith("Last text: /compact")
        kinds = [event["type"] for event in second["events"]]
        assert kinds.count("response.output_text.delta") > 3
    requests = simulator.requests(api="responses", operation="create")
    assert len({agent_session(request) for request in requests}) == 1
    assert [request.model for request in requests] == ["gpt-5.4"] * 2
    assert "Be a pirate." in texts(requests[0])
    assert "the secret of the gateway" not in simulator.record_jsonl()
    for request in requests:
        # It can only ask its user, and is told that nobody answers.
        assert {tool.get("name") for tool in request.body["tools"]} <= {"request_user_input"}


@pytest.mark.soak
async def test_a_thread_is_resumed_by_a_new_process_and_rebuilt_when_it_is_gone(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(codex(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        await until(lambda: not processes_of(root))
        second = await gateway.respond("who am I?", model=MODEL)
        assert text_of(second).endswith("Last text: who am I?")
        assert await heals(gateway) == []
        await until(lambda: not processes_of(root))
        for folder in rollout_folders(root):
            shutil.rmtree(folder)
        third = await gateway.respond("and now?", model=MODEL)
        assert text_of(third).endswith("\nand now?")
        assert await heals(gateway) == ["agent_session_not_found"]
    first, resumed, rebuilt = simulator.requests(api="responses", operation="create")
    assert agent_session(first) == agent_session(resumed) != agent_session(rebuilt)
    assert "I am Ada" in texts(resumed)
    assert '{"role":"user","text":"I am Ada"}' in texts(rebuilt)


@pytest.mark.soak
async def test_a_thread_that_the_program_does_not_know_is_healed(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(codex(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        await until(lambda: not processes_of(root))
        cut_beginnings(root)
        answer = await gateway.respond("who am I?", model=MODEL)
        assert text_of(answer).endswith("\nwho am I?")
        assert await heals(gateway) == ["agent_session_not_found"]


@pytest.mark.soak
async def test_images_and_failures_of_the_model(simulator: ProviderSimulator, root: Path) -> None:
    heals_off = HealSettings(transient_retries=0, busy_wait_seconds=0)
    image = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": PIXEL}]
    async with open_agent_gateway(codex(simulator, root), heals=heals_off) as gateway:
        await gateway.respond([{"role": "user", "content": image}], model=MODEL)
        (request,) = simulator.requests(api="responses", operation="create")
        assert PIXEL in str(request.body["input"])
        for status, code in ((401, "agent_not_logged_in"), (500, "agent_failed")):
            rule = simulator.add_fault("error", status=status, message="no")
            answer = await gateway.post("/v1/responses", input="hi", model=MODEL)
            assert answer.json()["error"]["code"] == code, answer.text
            simulator.remove_fault(rule)
