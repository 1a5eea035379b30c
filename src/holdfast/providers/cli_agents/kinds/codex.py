"""Codex: its app server in one process for several turns, JSON-RPC by lines."""

import contextlib
from typing import Any

import msgspec

from holdfast.core.model.session import Usage
from holdfast.providers.cli_agents.agent import AgentRequest, AgentTurn, Invocation, TurnInput
from holdfast.providers.cli_agents.directories import SessionDirectory, open_transcript
from holdfast.providers.cli_agents.failures import agent_broken, agent_failure
from holdfast.providers.cli_agents.kinds.json_rpc import JsonRpc
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.prompt import ImagePart
from holdfast.providers.items.shapes import as_object

Json = dict[str, Any]
_TOOL_FEATURES = (
    "apps", "browser_use", "code_mode_host", "computer_use", "goals", "hooks", "image_generation",
    "in_app_browser", "mentions_v2", "multi_agent", "plugins", "remote_plugin", "shell_snapshot",
    "shell_tool", "skill_search", "sleep_tool", "tool_suggest", "unified_exec", "view_image",
    "workspace_dependencies", "worktrees",
)  # fmt: skip
"""Features that give the agent tools, or let a message reach files."""
_ALLOWED = {
    "none": frozenset[str](),
    "read": frozenset({"shell_tool", "unified_exec"}),
    "write": frozenset({"shell_tool", "unified_exec"}),
}
_SETTINGS = """\
check_for_update_on_startup = false
cli_auth_credentials_store = "file"
project_doc_max_bytes = 0
web_search = "disabled"

[analytics]
enabled = false

[skills]
bundled = { enabled = false }

[features]
daemon_auto_start = false
"""
_TOOL_ITEMS = {
    "commandExecution": ("command", "aggregatedOutput"),
    "fileChange": ("changes", "status"),
    "mcpToolCall": ("arguments", "result"),
    "dynamicToolCall": ("arguments", "contentItems"),
    "webSearch": ("query", "action"),
}
"""Kinds of items for tool calls, with the fields of their input and output."""
_NAMED_STATUSES = {"unauthorized": 401, "usageLimitExceeded": 429}
_encode = msgspec.json.Encoder().encode


class Codex:
    """The agent `codex`."""

    program = "codex"
    oldest_version: tuple[int, ...] = (0, 160, 0)
    credentials = (".codex/auth.json", "auth.json")
    supports_images = True
    install_command = "npm install --global @openai/codex"
    login_command = "codex login"

    def invocation(self, request: AgentRequest) -> Invocation:
        """Return how to start it; its configuration file defines what it may do."""
        allowed = _ALLOWED[request.permissions]
        features = [f"{name} = {'true' if name in allowed else 'false'}" for name in _TOOL_FEATURES]
        request.directory.write_config("config.toml", _SETTINGS + "\n".join(features) + "\n")
        return Invocation(["app-server"], {"CODEX_HOME": str(request.directory.config)})

    async def open(self, process: AgentProcess, request: AgentRequest) -> "CodexSession":
        """Start or resume a thread; raise a stale-state failure if it cannot be resumed."""
        rpc = JsonRpc(process)
        client = {"name": "holdfast", "title": "Holdfast", "version": "1"}
        await rpc.call("initialize", {"clientInfo": client})
        await rpc.notify("initialized", {})
        has_tools = request.permissions != "none"
        params: Json = {
            "approvalPolicy": "never",
            # With tools, the gateway isolates the process; Codex's own sandbox cannot nest in that.
            "sandbox": "danger-full-access" if has_tools else "read-only",
            "cwd": str(request.directory.work),
            "model": request.model,
            "baseInstructions": request.instructions or None,
        }
        if request.session_id is None:
            answer = await rpc.call("thread/start", params)
        else:
            params |= {"threadId": request.session_id, "excludeTurns": True}
            answer = await rpc.call("thread/resume", params, is_stale_on_error=True)
        thread = answer.get("thread")
        if not isinstance(thread, dict) or not isinstance(thread.get("id"), str):
            raise agent_broken("the agent's new thread has no id")
        return CodexSession(rpc, thread["id"])

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return whether the thread's file contains the completion of the last turn."""
        for path in (directory.config / "sessions").glob(f"**/*{session_id}.jsonl"):
            with contextlib.suppress(OSError), open_transcript(path) as file:
                needles = (b'"task_complete"', mark.encode())
                return any(all(needle in line for needle in needles) for line in file)
        return False


class CodexSession:
    """A thread of a running `codex app-server`."""

    version = ""

    def __init__(self, rpc: JsonRpc, session_id: str) -> None:
        self._rpc = rpc
        self.session_id = session_id

    async def run(self, turn_input: TurnInput, output: AgentOutput) -> AgentTurn:
        """Start a turn and read until it is completed."""
        parts = [_input(part) for part in turn_input.prompt]
        params: Json = {"threadId": self.session_id, "input": parts}
        turn = as_object((await self._rpc.call("turn/start", params)).get("turn"))
        reading = _TurnReading(output, str(turn.get("id")))
        waiting = self._rpc.take_waiting()
        while True:
            message = waiting.pop(0) if waiting else await self._rpc.next_message()
            params = as_object(message.get("params"))
            if params.get("threadId", self.session_id) != self.session_id:
                continue
            if message.get("method") == "turn/completed":
                _require_success(as_object(params.get("turn")))
                return AgentTurn(usage=reading.usage, mark=reading.turn_id)
            reading.read(str(message.get("method")), params)
            await output.drain()


class _TurnReading:
    """Reads the notifications of one turn."""

    def __init__(self, output: AgentOutput, turn_id: str) -> None:
        self._output = output
        self.turn_id = turn_id
        self._streamed: set[str] = set()
        self.usage: Usage | None = None

    def read(self, method: str, params: Json) -> None:
        """Read a notification."""
        match method:
            case "item/agentMessage/delta":
                self._streamed.add(str(params.get("itemId")))
                self._output.add_text(str(params.get("delta")))
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self._output.add_reasoning(str(params.get("delta")))
            case "item/completed":
                self._read_item(as_object(params.get("item")))
            case "thread/tokenUsage/updated" if params.get("turnId") == self.turn_id:
                self._add_usage(as_object(params.get("tokenUsage")).get("last"))

    def _read_item(self, item: Json) -> None:
        kind = str(item.get("type"))
        if (
            kind == "agentMessage"
            and str(item.get("id")) not in self._streamed
            and item.get("text")
        ):
            self._output.add_text(str(item["text"]))
        if kind in ("agentMessage", "reasoning"):
            self._output.end_part()
        elif kind in _TOOL_ITEMS:
            arguments, output = (item.get(name) for name in _TOOL_ITEMS[kind])
            name = str(item.get("tool") or kind)
            is_failed = item.get("status") in ("failed", "declined")
            self._output.add_tool_call(name, arguments, _text(output), failed=is_failed)

    def _add_usage(self, value: Any) -> None:
        """Add the tokens of one model call; a turn may make several."""
        if not isinstance(value, dict):
            return
        before = self.usage or Usage()
        self.usage = Usage(
            input_tokens=before.input_tokens + _count(value, "inputTokens"),
            cached_tokens=before.cached_tokens + _count(value, "cachedInputTokens"),
            output_tokens=before.output_tokens + _count(value, "outputTokens"),
            reasoning_tokens=before.reasoning_tokens + _count(value, "reasoningOutputTokens"),
        )


def _require_success(turn: Json) -> None:
    if turn.get("status") == "completed":
        return
    error = as_object(turn.get("error"))
    message = str(error.get("message") or f"the agent's turn is {turn.get('status')}")
    info = error.get("codexErrorInfo")
    if info == "contextWindowExceeded":
        message = f"{message} (context window)"
    raise agent_failure(message, _status(info))


def _status(info: Any) -> int | None:
    """Return the HTTP status in the details of an error."""
    for detail in info.values() if isinstance(info, dict) else ():
        status = detail.get("httpStatusCode") if isinstance(detail, dict) else None
        if isinstance(status, int):
            return status
    return _NAMED_STATUSES.get(info) if isinstance(info, str) else None


def _input(part: str | ImagePart) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "url": part.url or f"data:{part.media_type};base64,{part.data}"}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _encode(value).decode()


def _count(value: Json, name: str) -> int:
    count = value.get(name)
    return count if isinstance(count, int) and count >= 0 else 0
