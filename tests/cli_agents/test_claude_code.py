"""Claude Code behind the gateway, with the real program and the simulator as its model."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents import programs
from tests.cli_agents.agents import (
    agent_session,
    claude_code,
    heals,
    open_agent_gateway,
    processes_of,
    texts,
    transcripts,
    until,
)
from tests.integration.upstream_gateway import text_of, upstream

Json = dict[str, Any]
MODEL = "claude-code/opus"
pytestmark = pytest.mark.timeout(600)  # the first run installs the program


async def test_a_conversation_is_one_session_of_the_agent(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        first = await gateway.respond("I am Ada", model=MODEL)
        assert text_of(first) == "Messages seen: 1. Last text: I am Ada"
        second = await gateway.respond("who am I?", model=MODEL, stream=True)
        assert text_of(second) == "Messages seen: 3. Last text: who am I?"
        kinds = [event["type"] for event in second["events"]]
        assert kinds.count("response.output_text.delta") > 3
        third = await gateway.chat("thanks", model=MODEL)
        assert text_of(third) == "Messages seen: 5. Last text: thanks"
    requests = simulator.requests(api="messages")
    assert len({agent_session(request) for request in requests}) == 1
    assert [request.model for request in requests] == ["claude-opus-4-8"] * 3
    assert [request.body.get("tools") for request in requests] == [[]] * 3


@pytest.mark.soak
async def test_an_idle_process_ends_and_its_session_goes_on(
    simulator: ProviderSimulator, root: Path
) -> None:
    settings = claude_code(simulator, root, idle_seconds=0.01)
    async with open_agent_gateway(settings) as gateway:
        await gateway.respond("shall I book the flight?", model=MODEL)
        await until(lambda: not processes_of(root))
        answer = await gateway.respond("yes", model=MODEL)
    assert text_of(answer) == "Messages seen: 3. Last text: yes"
    first, second = simulator.requests(api="messages")
    assert agent_session(first) == agent_session(second)


@pytest.mark.soak
async def test_a_lost_transcript_is_healed_once_with_the_whole_history(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        await until(lambda: not processes_of(root))
        for transcript in transcripts(root):
            transcript.unlink()
        answer = await gateway.respond("who am I?", model=MODEL)
        assert text_of(answer).endswith("Last text: who am I?")
        assert await heals(gateway) == ["agent_session_not_found"]
        again = await gateway.respond("thanks", model=MODEL)
        assert text_of(again) == "Messages seen: 3. Last text: thanks"
        assert await heals(gateway) == []
    first, second, third = simulator.requests(api="messages")
    assert agent_session(first) != agent_session(second) == agent_session(third)
    history = "\n".join(texts(second))
    assert '{"role":"user","text":"I am Ada"}' in history
    assert '{"role":"assistant","text":"Messages seen: 1. Last text: I am Ada"}' in history


@pytest.mark.soak
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
async def test_what_an_agent_puts_in_the_place_of_its_files_is_healed(
    simulator: ProviderSimulator, root: Path, make: Callable[[Path], None]
) -> None:
    async with open_agent_gateway(claude_code(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL, instructions="Be brief.")
        await until(lambda: not processes_of(root))
        (transcript,) = transcripts(root)
        config = transcript.parents[2]
        path = config / "instructions.txt" if make is os.mkdir else transcript
        path.unlink()
        make(path)
        answer = await gateway.respond("who am I?", model=MODEL, instructions="Be brief.")
        assert text_of(answer).endswith("Last text: who am I?")
        assert await heals(gateway) == ["agent_session_not_found"]


@pytest.mark.soak
async def test_a_session_that_the_program_does_not_know_is_healed(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        await until(lambda: not processes_of(root))
        (transcript,) = transcripts(root)
        # The program looks for a session under the name of its working directory.
        transcript.parent.rename(transcript.parent.with_name("-elsewhere"))
        answer = await gateway.respond("who am I?", model=MODEL)
        assert text_of(answer).endswith("Last text: who am I?")
        assert await heals(gateway) == ["agent_session_not_found"]
    first, second = simulator.requests(api="messages")
    assert agent_session(first) != agent_session(second)


@pytest.mark.soak
async def test_a_turn_that_was_cut_off_starts_a_new_session_of_the_agent(
    simulator: ProviderSimulator, root: Path
) -> None:
    settings = claude_code(simulator, root, turn_seconds=15)
    async with open_agent_gateway(settings) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        with simulator.hold(when={"text": "hang"}, times=1):
            cut = await gateway.post("/v1/responses", input="hang", model=MODEL)
            assert cut.status_code == 504, cut.text
            assert cut.json()["error"]["code"] == "agent_timeout"
            assert processes_of(root) == []
        answer = await gateway.respond("who am I?", model=MODEL)
    assert text_of(answer).endswith("Last text: who am I?")
    first, second, third = simulator.requests(api="messages")
    assert agent_session(first) == agent_session(second) != agent_session(third)
    assert '{"role":"user","text":"I am Ada"}' in "\n".join(texts(third))


@pytest.mark.soak
@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
async def test_a_cancelled_turn_ends_its_process_and_is_not_resumed(
    simulator: ProviderSimulator, root: Path, on_busy: str
) -> None:
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        with simulator.hold(when={"text": "hang"}, times=1) as barrier:
            hanging = asyncio.create_task(gateway.post("/v1/responses", input="hang", model=MODEL))
            await barrier.wait_held_async()
            answer = await gateway.respond("who am I?", model=MODEL, headers={"X-On-Busy": on_busy})
            assert (await hanging).json()["error"]["code"] == "turn_cancelled"
    assert text_of(answer).endswith("Last text: who am I?")
    first, second, third = simulator.requests(api="messages")
    assert agent_session(first) == agent_session(second) != agent_session(third)
    history = "\n".join(texts(third))
    assert '{"role":"user","text":"I am Ada"}' in history
    assert ("hang" in history) == (on_busy == "interrupt")


@pytest.mark.soak
async def test_another_version_or_directory_starts_a_new_session_of_the_agent(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\nexec {programs.claude()} "$@"\n')
    program.chmod(0o755)
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"
    settings = claude_code(simulator, root, command=str(program))
    async with open_agent_gateway(settings, store_url=store) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo 9.9.9 && exit\nexec {programs.claude()} "$@"\n'
    )
    async with open_agent_gateway(settings, store_url=store) as gateway:
        await gateway.respond("who am I?", model=MODEL)
        assert await heals(gateway) == ["agent_version_changed"]
    moved = replace(settings, workdir=str(tmp_path / "work/{session}"))
    async with open_agent_gateway(moved, store_url=store) as gateway:
        await gateway.respond("and now?", model=MODEL)
        assert await heals(gateway) == ["agent_directory_changed"]
    sessions = [agent_session(request) for request in simulator.requests(api="messages")]
    assert len(set(sessions)) == 3
    assert "I am Ada" in "\n".join(texts(simulator.requests(api="messages")[-1]))


async def test_a_message_cannot_command_the_agent_or_read_files(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret of the gateway")
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        for text in (f"see @{secret}", "/clear", "/compact now", "!ls", "# remember"):
            answer = await gateway.respond(text, model=MODEL)
            assert text_of(answer).strip().endswith(f"Last text: {text}") or text.startswith("/")
        last = await gateway.respond("last", model=MODEL)
    assert text_of(last) == "Messages seen: 11. Last text: last"
    assert "the secret of the gateway" not in simulator.record_jsonl()


@pytest.mark.soak
async def test_an_agent_gets_the_named_environment_and_private_directories(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        answer = await gateway.respond("hi", model=MODEL, instructions="You are a pirate.")
        assert text_of(answer)
        (process,) = processes_of(root)
        environment = process.environ()
        assert environment["ANTHROPIC_API_KEY"] == simulator.key
        assert "NOT_NAMED" not in environment
        assert not {name for name in environment if name.startswith("HOLDFAST")}
        (session,) = (root / "claude").iterdir()
        assert Path(environment["HOME"]) == session / "config"
        assert Path(process.cwd()) == session / "work"
        for directory in (root / "claude", session, session / "config", session / "work"):
            assert directory.stat().st_mode & 0o777 == 0o700
        assert "hi" not in " ".join(process.cmdline())
        assert "pirate" not in " ".join(process.cmdline())
    (request,) = simulator.requests(api="messages")
    assert "You are a pirate." in str(request.body["system"])


@pytest.mark.soak
async def test_more_sessions_than_processes_take_turns(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root, max_processes=2)) as gateway:
        async with asyncio.TaskGroup() as group:
            for key in "abcd":
                group.create_task(gateway.respond(f"I am {key}", key, model=MODEL))
        assert len(processes_of(root)) == 2
        for key in "abcd":
            answer = await gateway.respond("again", key, model=MODEL)
            assert text_of(answer) == "Messages seen: 3. Last text: again"
            assert len(processes_of(root)) <= 2
    assert len({agent_session(request) for request in simulator.requests(api="messages")}) == 4


@pytest.mark.soak
async def test_a_reset_ends_the_process_and_a_deletion_removes_the_directory(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        first = await gateway.post("/v1/responses", input="I am Ada", model=MODEL)
        session = first.headers["x-session-id"]
        assert (await gateway.client.post(f"/v1/sessions/{session}/reset")).status_code == 200
        assert processes_of(root) == []
        second = await gateway.post("/v1/responses", input="who am I?", model=MODEL)
        assert second.json()["output"][-1]["content"][0]["text"].startswith("Messages seen: 1.")
        assert {path.name for path in (root / "claude").iterdir()} == {
            session, second.headers["x-session-id"],
        }  # fmt: skip
        for name in (session, second.headers["x-session-id"]):
            assert (await gateway.client.delete(f"/v1/sessions/{name}")).status_code == 200
        assert list((root / "claude").iterdir()) == []
        assert processes_of(root) == []


async def test_what_an_agent_cannot_do_is_refused_before_it_is_stored(
    simulator: ProviderSimulator, root: Path
) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    refused: list[Json] = [
        {"input": "hi", "tools": [tool]},
        {"input": "hi", "n": 2},
        {"input": "hi", "n": 0},
        {"input": "hi", "text": {"format": {"type": "json_object"}}},
        {"input": "hi", "model": "claude-code/--help me"},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
    ]
    async with open_agent_gateway(claude_code(simulator, root)) as gateway:
        for body in refused:
            # A history that is not stored may have content that only other models can be shown.
            for is_stored in (True, False) if body["input"] == "hi" else (True,):
                asked = {"model": MODEL, "store": is_stored, **body}
                answer = await gateway.post("/v1/responses", None, **asked)
                assert answer.status_code == 400, answer.text
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []
    assert simulator.requests(api="messages") == []


@pytest.mark.soak
async def test_failures_of_the_model_are_distinguished(
    simulator: ProviderSimulator, root: Path
) -> None:
    heals_off = HealSettings(transient_retries=0, busy_wait_seconds=0)
    async with open_agent_gateway(claude_code(simulator, root), heals=heals_off) as gateway:
        for status, message, code in (
            (401, "invalid x-api-key", "agent_not_logged_in"),
            (400, "prompt is too long: 9 tokens > 8 maximum", "context_length_exceeded"),
            (429, "slow down", "agent_rate_limited"),
            (500, "broken", "agent_failed"),
        ):
            rule = simulator.add_fault("error", status=status, message=message)
            answer = await gateway.post("/v1/responses", input="hi", model=MODEL)
            assert answer.json()["error"]["code"] == code, answer.text
            simulator.remove_fault(rule)
        answer = await gateway.post("/v1/responses", input="go on", model=MODEL)
        assert answer.status_code == 200


@pytest.mark.soak
async def test_a_plain_model_goes_on_where_the_agent_fails(
    simulator: ProviderSimulator, root: Path
) -> None:
    agent = claude_code(simulator, root, fallback=("gpt-5.4",))
    plain = upstream(simulator, name="plain", models=("gpt-*",))
    async with open_agent_gateway(agent, plain) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        rule = simulator.add_fault("error", status=401, when={"api": "messages"})
        answer = await gateway.respond("who am I?", model=MODEL)
        assert text_of(answer) == "Messages seen: 3. Last text: who am I?"
        assert answer["model"] == "gpt-5.4"
        simulator.remove_fault(rule)
        again = await gateway.respond("and now?", model=MODEL)
        assert text_of(again).endswith("Last text: and now?")
    last = simulator.requests(api="messages")[-1]
    assert '{"role":"user","text":"who am I?"}' in "\n".join(texts(last))


@pytest.mark.soak
async def test_two_gateways_never_go_on_from_an_old_process(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"
    settings = claude_code(simulator, root)
    async with (
        open_agent_gateway(settings, store_url=store) as first,
        open_agent_gateway(settings, store_url=store) as second,
    ):
        for turn, gateway in enumerate((first, second, first)):
            answer = await gateway.respond(f"turn {turn}", model=MODEL)
            # What the transcript does not contain yet is replayed, and counted as one message.
            assert text_of(answer).endswith(f"turn {turn}")
            assert len(processes_of_groups(root)) == 1
    last = simulator.requests(api="messages")[-1]
    for text in ("turn 0", "turn 1", "turn 2"):
        assert text in "\n".join(texts(last))


def processes_of_groups(root: Path) -> set[int]:
    """Return the process groups of the agents that run."""
    return {os.getpgid(process.pid) for process in processes_of(root)}


@pytest.mark.soak
async def test_the_agent_goes_on_where_a_plain_model_fails(
    simulator: ProviderSimulator, root: Path
) -> None:
    plain = upstream(simulator, name="plain", models=("gpt-*",), fallback=(MODEL,))
    agent = claude_code(simulator, root)
    async with open_agent_gateway(plain, agent) as gateway:
        await gateway.respond("I am Ada", model="gpt-5.4")
        simulator.add_fault("error", status=401, when={"api": "responses"})
        answer = await gateway.respond("who am I?", model="gpt-5.4")
        assert answer["model"] == MODEL
        assert text_of(answer).endswith("Last text: who am I?")
    (request,) = simulator.requests(api="messages")
    assert '{"role":"user","text":"I am Ada"}' in "\n".join(texts(request))
