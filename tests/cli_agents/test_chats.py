"""Agents in chats and on schedules, over a real gateway process and a simulated Telegram."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.platforms import TelegramSimulator
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.acceptance.stories import HttpUser
from tests.cli_agents import programs
from tests.cli_agents.agents import agent_session, processes_of, transcripts, until
from tests.cli_agents.test_agent_approvals import MODEL, PROGRAM

TOKEN = "42:TEST"
ASKING = (
    f'name = "asking"\napi = "acp"\ncommand = "{PROGRAM}"\nmodels = ["{MODEL}"]\n'
    'permissions = "write"\nsandbox = true\n'
)
CLAUDE = 'name = "claude"\napi = "claude-code"\nenv = ["ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"]\n'
IDLE = '[sessions.reset]\nmode = "idle"\nidle_minutes = 0.000001\n'
NO_DRAIN = "[server]\ndrain_seconds = 0\n"
SHORT_LEASE = "[lanes]\nlease_seconds = 1.5\n"
"""For a gateway that is killed: its next life waits for the lease of the first."""


@contextmanager
def chat_with(
    agent: str, model: str, store_url: str, root: Path, more: str = "", **env: str
) -> Iterator[tuple[TelegramSimulator, GatewayProcess]]:
    """Run a gateway between a chat and an agent."""
    with TelegramSimulator(TOKEN) as telegram:
        config = root.parent / "holdfast.toml"
        config.write_text(
            f"[[upstream]]\n{agent}"
            '[[channel]]\nname = "support"\nkind = "telegram"\ntoken_env = "BOT_TOKEN"\n'
            f'url = "{telegram.url}"\nmodel = "{model}"\n'
            f'direct = "open"\ncollect_seconds = 0\n{IDLE}{more}'
        )
        env = {"BOT_TOKEN": TOKEN, "XDG_DATA_HOME": str(root), **env}
        with running_gateway(store_url, "--config", str(config), env=env) as gateway:
            yield telegram, gateway


def made(root: Path) -> list[Path]:
    """Return the files that agents made."""
    return list(root.rglob("made.txt"))


async def test_a_person_in_a_chat_allows_what_an_agent_asks_for(store_url: str, root: Path) -> None:
    programs.bubblewrap()
    with chat_with(ASKING, MODEL, store_url, root) as (telegram, gateway):
        telegram.say("make")
        telegram.wait(lambda: any(sent.buttons for sent in telegram.sent))
        asked = next(sent for sent in telegram.sent if sent.buttons)
        assert "touch made.txt" in asked.text
        assert made(root) == []
        telegram.press(asked, "Allow")
        telegram.wait_for_text("Chosen: once.")
        assert len(made(root)) == 1
        telegram.say("thanks")
        telegram.wait_for_text("You said: thanks")
        gateway.stop()
    await until(lambda: not processes_of(root))


def workdirs(root: Path) -> list[Path]:
    """Return the directories in which agents work."""
    return [folder for folder in root.rglob("work") if folder.is_dir()]


def until_running(gateway: GatewayProcess, attempt: int) -> None:
    """Wait until an attempt of the last turn of the chat is in progress."""
    user = HttpUser(gateway)
    session = user.session("agent:main:telegram:direct:7")
    while True:
        turns = user.get(f"/v1/sessions/{session['id']}/turns?order=desc")["data"]
        if (turns[0]["status"], turns[0]["attempts"]) == ("running", attempt):
            return


async def test_three_deployments_during_one_long_turn_of_an_agent_end_in_its_answer(
    store_url: str, root: Path
) -> None:
    programs.bubblewrap()
    with chat_with(ASKING, MODEL, store_url, root, NO_DRAIN) as (telegram, gateway):
        telegram.say("hello")
        telegram.wait_for_text("You said: hello")
        (work,) = workdirs(root)
        os.mkfifo(work / "gate")
        telegram.say("wait")
        for deployment in range(1, 4):
            until_running(gateway, deployment)
            await until(lambda: bool(processes_of(root)))
            assert gateway.stop() == 0
            gateway.start()
        until_running(gateway, 4)
        # This blocks until the agent of the last attempt waits at the pipe.
        await asyncio.to_thread((work / "gate").write_text, "go")
        telegram.wait_for_text("Waiting.")
        assert not [text for text in telegram.texts(7) if "Sorry" in text]
        gateway.stop()
    await until(lambda: not processes_of(root))


def until_ended(user: HttpUser) -> dict[str, Any]:
    """Wait until the only run of the schedule has ended; return it."""
    while True:
        runs: list[dict[str, Any]] = user.get("/v1/schedules/report")["runs"]
        if runs and runs[0]["outcome"]:
            return runs[0]


async def test_an_agent_on_a_schedule_answers_and_is_refused_what_it_asks_for(
    store_url: str, root: Path
) -> None:
    programs.bubblewrap()
    with chat_with(ASKING, MODEL, store_url, root) as (telegram, gateway):
        telegram.say("hello")
        telegram.wait_for_text("You said: hello")
        user = HttpUser(gateway)
        body = {
            "name": "report",
            "prompt": "make",
            "model": MODEL,
            "every": "1h",
            "deliver": {"channel": "support", "to": "7"},
        }
        assert user.post("/v1/schedules", body).status_code == 200
        assert user.post("/v1/schedules/report/run").status_code == 200
        # Nobody is there to be asked.
        telegram.wait_for_text("Chosen: no.")
        assert until_ended(user)["outcome"] == "completed"
        assert user.get("/v1/approvals")["data"] == []
        assert made(root) == []
        gateway.stop()
    await until(lambda: not processes_of(root))


def is_idle(user: HttpUser) -> bool:
    """Whether every turn has ended."""
    return all(session["status"] == "idle" for session in user.get("/v1/sessions")["data"])


@pytest.mark.soak
@pytest.mark.timeout(600)  # the first run installs the program
async def test_the_yes_in_a_chat_resumes_the_same_session_of_the_agent(
    simulator: ProviderSimulator, store_url: str, root: Path
) -> None:
    agent = f'{CLAUDE}command = "{programs.claude()}"\n'
    env = {"ANTHROPIC_BASE_URL": simulator.url, "ANTHROPIC_API_KEY": simulator.key}
    story = chat_with(agent, "claude-code/opus", store_url, root, SHORT_LEASE, **env)
    with story as (telegram, gateway):
        telegram.say("shall I book the flight?")
        telegram.wait_for_text("Messages seen: 1")
        # The chat shows the answer while it is streamed: a turn that has not ended runs again.
        await until(lambda: is_idle(HttpUser(gateway)))
        # The program writes its transcript a moment after its answer.
        await until(lambda: any("Messages seen" in t.read_text() for t in transcripts(root)))
        gateway.kill()
        await until(lambda: not processes_of(root))
        gateway.start()
        telegram.say("yes")
        telegram.wait_for_text("Messages seen: 3")
        first, second = simulator.requests(api="messages")
        assert agent_session(first) == agent_session(second)
        gateway.stop()
    await until(lambda: not processes_of(root))
