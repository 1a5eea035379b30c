"""Messages of an agent with values of the wrong types are skipped; the turn goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.providers.cli_agents.agent import AgentTurn, TurnInput
from holdfast.providers.cli_agents.kinds.acp import AcpSession, _Permissions
from holdfast.providers.cli_agents.kinds.claude_code import ClaudeSession
from holdfast.providers.cli_agents.kinds.codex import CodexSession
from holdfast.providers.cli_agents.kinds.json_rpc import JsonRpc
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.testing.ids import SequentialIds
from tests.unit.providers.cli_agents.test_process import start

AnySession = AcpSession | ClaudeSession | CodexSession
WRONG: list[Any] = [None, 7, "text", [1, "x", None], {"content": 7}, {"content": [7, None, "x"]}]
NESTED = "[" * 100_000 + "]" * 100_000


def update(value: Any) -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": "s", "update": value}}


CHUNK = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "fine"}}
TOOL = {"sessionUpdate": "tool_call", "status": "completed"}
ACP = [
    *({"method": "session/update", "params": wrong} for wrong in WRONG),
    *map(update, WRONG),
    *(update({**CHUNK, "content": wrong}) for wrong in WRONG),
    *(update({**TOOL, "toolCallId": f"t{n}", "content": wrong}) for n, wrong in enumerate(WRONG)),
    *({"id": f"r{n}", "method": "fs/read", "params": wrong} for n, wrong in enumerate(WRONG)),
    update(CHUNK),
    {"id": 1, "result": {"stopReason": "end_turn"}},
]
CODEX = [
    {"id": 1, "result": {"turn": 7}},
    *({"method": "item/completed", "params": wrong} for wrong in WRONG),
    *({"method": "item/completed", "params": {"item": wrong}} for wrong in WRONG),
    *({"method": "item/completed", "params": {"item": {"type": wrong}}} for wrong in WRONG),
    *(
        {"method": "item/completed", "params": {"item": {"type": "agentMessage", "id": wrong}}}
        for wrong in WRONG
    ),
    *(
        {"method": "thread/tokenUsage/updated", "params": {"turnId": "None", "tokenUsage": wrong}}
        for wrong in WRONG
    ),
    {"method": "item/agentMessage/delta", "params": {"itemId": "i", "delta": "fine"}},
    {"method": "turn/completed", "params": {"turn": {"status": "completed"}}},
]
DELTA = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "fine"}}
CLAUDE = [
    *({"type": "stream_event", "event": wrong} for wrong in WRONG),
    *({"type": kind, "message": wrong} for kind in ("assistant", "user") for wrong in WRONG),
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": ["x"]}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "c"}]}},
    {
        "type": "user",
        "message": {"content": [{"tool_use_id": ["x"]}, {"tool_use_id": "c", "content": [7]}]},
    },
    {"type": "assistant", "message": {"model": "<synthetic>", "content": [{"type": "text"}]}},
    {"type": "stream_event", "event": DELTA},
    {"type": "result", "usage": 7},
]


def open_acp(process: AgentProcess) -> AcpSession:
    return AcpSession(JsonRpc(process), "s", "1.0", "", _Permissions())


@pytest.mark.parametrize(
    ("open_session", "messages"),
    [
        (open_acp, ACP),
        (lambda process: CodexSession(JsonRpc(process), "s"), CODEX),
        (lambda process: ClaudeSession(process, "s"), CLAUDE),
    ],
    ids=["acp", "codex", "claude-code"],
)
async def test_values_of_wrong_types_are_skipped(
    open_session: Callable[[AgentProcess], AnySession],
    messages: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    lines = [NESTED, *map(json.dumps, WRONG), *map(json.dumps, messages)]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    process = await start("cat lines; cat > said", tmp_path)
    output = AgentOutput(SequentialIds().new, None)
    try:
        turn = await open_session(process).run(TurnInput(prompt=["hi"]), output)
    finally:
        await process.kill()
    assert isinstance(turn, AgentTurn)
    output.end_part()
    texts = [json.loads(item) for item in output.items if b'"message"' in item]
    assert [item["content"][0]["text"] for item in texts if item["type"] == "message"] == ["fine"]
