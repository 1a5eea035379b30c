"""Story 0 with tools: an agent with ten tools, on a provider that forgets what it was chained to.

The tools belong to a real MCP server process. Each runs once, whatever the provider forgets and
whenever the gateway dies.
"""

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import HttpUser, answer_text, gateway_before

SERVER = Path(__file__).parent.parent / "tools" / "odd_mcp_server.py"
TOOLS = [{"type": "mcp", "server_label": "odd"}, {"type": "holdfast", "name": "session_status"}]
COUNT = 10


def _mcp(tmp_path: Path) -> str:
    arguments = f'["{SERVER}", "{tmp_path / "state"}"]'
    command = f'command = "{sys.executable}"\nargs = {arguments}'
    return f'[[mcp]]\nname = "odd"\n{command}\napproval = "never"\nrepeatable = ["echo"]\n'


def _called(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "state").read_text().splitlines()
    return [line for line in lines if not line.startswith("started")]


def _script(sim: ProviderSimulator) -> None:
    """Have the model call one tool after the other, each with the output of the one before."""
    sim.add_answer("all ten are done", when={"text": f"result-{COUNT}."})
    for number in range(COUNT, 0, -1):
        before = f"result-{number - 1}." if number > 1 else "use your tools"
        name = "odd__echo" if number % 2 else "odd__write"
        call = {"name": name, "arguments": {"text": f"result-{number}."}}
        sim.add_answer(None, when={"text": before}, tool_calls=[call])


@pytest.mark.parametrize(
    ("api", "is_stream"), [("responses", False), ("responses", True), ("chat", True)]
)
def test_ten_tools_run_once_each_while_the_provider_forgets(
    api: str, store_url: str, tmp_path: Path, *, is_stream: bool
) -> None:
    upstream = f'api = "{api}"\nstate = "{"chain" if api == "responses" else "replay"}"'
    with (
        ProviderSimulator() as sim,
        gateway_before(sim, store_url, tmp_path, upstream=upstream, more=_mcp(tmp_path)) as gw,
    ):
        user = HttpUser(gw)
        answer_text(user.say("agent:main:main", "I am Ada"))
        _script(sim)
        if api == "responses":
            sim.add_fault("forget", when={"every": 3})
        reply = user.say("agent:main:main", "use your tools", tools=TOOLS, stream=is_stream)
        assert reply.status_code == 200, reply.text
        assert "all ten are done" in reply.text
        assert _called(tmp_path) == ["echo", "write"] * (COUNT // 2)
        turn = user.session("agent:main:main")["last_turn"]["id"]
        runs = user.get(f"/v1/turns/{turn}")["runs"]
        heals = [heal["failure_class"] for heal in runs[-1]["heals"] or ()]
        if api == "responses":
            assert heals
            assert set(heals) == {"stale_state"}
        # The session goes on, and the model is shown everything.
        sim.clear_faults()
        answer_text(user.say("agent:main:main", "who am I?"))


def _background(user: HttpUser, gateway: GatewayProcess, text: str) -> dict[str, Any]:
    body = {"model": "gpt-4.1", "input": text, "background": True, "tools": TOOLS}
    reply = httpx.post(
        f"{gateway.url}/v1/responses", json=body, headers={"X-Session-Key": "k"}, timeout=60
    )
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_a_tool_that_ran_when_the_gateway_was_killed_does_not_run_again(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator() as sim,
        gateway_before(sim, store_url, tmp_path, more=_mcp(tmp_path)) as gateway,
    ):
        sim.add_answer("I will check first", when={"text": "outcome of this call is unknown"})
        call = {"name": "odd__slow", "arguments": {}}
        sim.add_answer(None, when={"text": "be slow"}, tool_calls=[call], times=1)
        user = HttpUser(gateway)
        begun = _background(user, gateway, "be slow")
        _wait(lambda: (tmp_path / "state").exists() and "slow" in _called(tmp_path))
        gateway.kill()
        gateway.start()
        _wait(lambda: user.get(f"/v1/responses/{begun['id']}")["status"] == "completed")
        answer = user.get(f"/v1/responses/{begun['id']}")
        assert _called(tmp_path).count("slow") == 1
        assert "I will check first" in str(answer["output"])


def _wait(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
