"""Codex as a client: its full history each time, with ids, `store: false`, always streamed.

What is sent here is what that client sends over the wire, header by header and field by field.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import gateway_before

MODEL = "gpt-5.4"
Item = dict[str, Any]
TOOLS: list[Item] = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Run a command.",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
    {"type": "custom", "name": "apply_patch", "description": "Edit files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "namespace", "name": "files", "description": "Files.", "tools": []},
    {"type": "local_shell"},
]  # fmt: skip
SHELL_HISTORY: list[Item] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list them"}]},
    {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_shell",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "timeout_ms": None, "env": {}},
    },
    {"type": "local_shell_call_output", "id": "call_shell", "call_id": "call_shell",
     "output": "a.txt"},
    {"type": "message", "role": "assistant", "id": "msg_theirs",
     "content": [{"type": "output_text", "text": "There is a.txt."}]},
]  # fmt: skip


@pytest.fixture(name="simulator", scope="module")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=3) as simulator:
        yield simulator


@pytest.fixture(name="gateway", scope="module")
def _gateway(
    simulator: ProviderSimulator,
    lasting_store_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("codex")
    with gateway_before(simulator, lasting_store_url, folder) as gateway:
        yield gateway


class CodexThread:
    """A thread of that client: what it keeps, and how it sends it."""

    def __init__(self, gateway: GatewayProcess, *, key: str | None) -> None:
        self._gateway = gateway
        self._key = key
        self.outputs = 0
        self.history: list[Item] = [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "<environment_context>"}]},
        ]  # fmt: skip

    def say(self, text: str) -> str:
        """Run one turn of the user to its end, tools included; return the last text."""
        content = [{"type": "input_text", "text": text}]
        self.history.append({"type": "message", "role": "user", "content": content})
        while True:
            said = self.send()
            calls = [item for item in said if item["type"].endswith("_call")]
            if not calls:
                return str(said[-1]["content"][0]["text"])
            self.history += [self._run(call) for call in calls]

    def _run(self, call: Item) -> Item:
        self.outputs += 1
        kind = f"{call['type']}_output"
        prefix = "ctco" if kind == "custom_tool_call_output" else "fco"
        name = f"{prefix}_{self.outputs}"
        return {"type": kind, "id": name, "call_id": call["call_id"], "output": "done"}

    def send(self) -> list[Item]:
        """Send everything; keep each item as soon as it is told to be done."""
        said: list[Item] = []
        for event in self._events():
            if event["type"] == "response.output_item.done":
                said.append(event["item"])
                self.history.append(event["item"])
        return said

    def _events(self) -> Iterator[Item]:
        body = {
            "model": MODEL,
            "instructions": "You are a coding agent.",
            "input": self.history,
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0199-thread",
            "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "i"},
        }
        headers = {
            "session-id": "0199-thread",
            "thread-id": "0199-thread",
            "originator": "codex_exec",
            "accept": "text/event-stream",
            "x-codex-turn-metadata": '{"request_kind":"turn","turn_id":"t"}',
            **({"X-Session-Key": self._key} if self._key is not None else {}),
        }
        url = f"{self._gateway.url}/v1/responses"
        numbers = []
        last = ""
        with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                numbers.append(event["sequence_number"])
                last = event["type"]
                yield event
        assert numbers == list(range(len(numbers)))
        assert last == "response.completed", last

    def stored(self) -> list[Item]:
        """Return what the gateway keeps of the thread."""
        found = httpx.get(f"{self._gateway.url}/v1/sessions", params={"key": self._key}).json()
        path = f"{self._gateway.url}/v1/sessions/{found['data'][0]['id']}/items"
        data: list[Item] = httpx.get(path, params={"limit": 100, "order": "asc"}).json()["data"]
        return data


def _said(items: list[Item]) -> list[Any]:
    """Return what items say, whatever their ids and spelling."""
    return [
        (item["type"], item.get("call_id"), item.get("arguments"), item.get("input"),
         item.get("output"), item.get("encrypted_content"),
         [part["text"] for part in item.get("content") or ()])
        for item in items
    ]  # fmt: skip


def test_a_thread_with_tools_and_reasoning_is_kept_once_and_sent_on_whole(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    thread = CodexThread(gateway, key="codex:tools")
    assert "Messages seen: 2" in thread.say("hello")
    assert "done" in thread.say('call exec_command {"cmd": "ls"}')
    assert "done" in thread.say("call apply_patch {} and call exec_command {}")
    assert "Messages seen: " in thread.say("thanks")
    # Of everything there is one copy, in the client's order, as the client has it.
    assert _said(thread.stored()) == _said(thread.history)
    kinds = {item["type"] for item in thread.history}
    assert kinds >= {"reasoning", "function_call", "custom_tool_call", "custom_tool_call_output"}
    # The provider is told all of it, by no id that it would have to know.
    last = simulator.requests(api="responses", operation="create")[-1].body
    assert last["store"] is False
    assert len(last["input"]) == len(thread.history) - 2
    assert not [item for item in last["input"] if "id" in item]
    assert [tool["type"] for tool in last["tools"]] == [tool["type"] for tool in TOOLS]
    assert last["prompt_cache_key"] == "0199-thread"
    assert last["client_metadata"] == {"x-codex-installation-id": "i"}
    assert "reasoning.encrypted_content" in last["include"]
    assert all(item["encrypted_content"] for item in last["input"] if item["type"] == "reasoning")


def test_a_thread_that_is_resumed_after_a_crash_brings_nothing_twice(
    gateway: GatewayProcess,
) -> None:
    thread = CodexThread(gateway, key="codex:crash")
    thread.history += SHELL_HISTORY
    thread.say("go on")
    gateway.kill()
    gateway.start()
    assert "Messages seen: " in thread.say("and on")
    assert _said(thread.stored()) == _said(thread.history)


def test_a_stream_that_broke_off_is_sent_again_with_what_had_come(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    thread = CodexThread(gateway, key="codex:retry")
    thread.say("hello")
    thread.history.append(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "again"}]}
    )
    before = len(thread.history)
    simulator.add_fault("cut", event=14, ending="reset", times=1, when={"stream": True})
    with pytest.raises(AssertionError, match=r"response\.failed"):
        thread.send()
    # What was told to be done is in its history by now, and goes along with the retry.
    assert [item["type"] for item in thread.history[before:]] == ["reasoning"]
    retried = thread.send()
    assert "Last text: again" in retried[-1]["content"][0]["text"]
    texts = [_said([item])[0][-1] for item in thread.stored() if item["type"] == "message"]
    assert texts.count(["again"]) == 1
    assert "Messages seen: " in thread.say("next")


def test_a_thread_that_compacts_itself_goes_on_from_its_summary(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    thread = CodexThread(gateway, key="codex:summary")
    thread.say("first")
    thread.say("second")
    thread.say("summarize the thread")
    summary = {"type": "message", "role": "user",
               "content": [{"type": "input_text", "text": "Summary: it went well."}]}  # fmt: skip
    said_to_it = [item for item in thread.history if item.get("role") in ("developer", "user")]
    thread.history = [*said_to_it[:4], summary]
    assert "Messages seen: 5" in thread.say("third")
    assert _said(thread.stored()) == _said(thread.history)
    last = simulator.requests(api="responses", operation="create")[-1].body
    assert [item["role"] for item in last["input"]] == ["developer"] + ["user"] * 5


def test_a_thread_without_a_key_leaves_nothing_behind(gateway: GatewayProcess) -> None:
    thread = CodexThread(gateway, key=None)
    thread.say("hello")
    assert "done" in thread.say('call exec_command {"cmd": "ls"}')
    assert "Messages seen: " in thread.say("thanks")
    sessions = httpx.get(f"{gateway.url}/v1/sessions", params={"limit": 100}).json()["data"]
    assert {session["key"] for session in sessions} <= {
        "codex:tools", "codex:crash", "codex:retry", "codex:summary",
    }  # fmt: skip
