"""Claude Code: one process for several turns, lines of stream-json in both directions."""

import re
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.model.session import Usage
from holdfast.providers.cli_agents.agent import AgentRequest, AgentTurn, Invocation, TurnInput
from holdfast.providers.cli_agents.directories import SessionDirectory, open_transcript
from holdfast.providers.cli_agents.failures import (
    agent_broken,
    agent_failure,
    stale_session,
)
from holdfast.providers.cli_agents.kinds.json_rpc import exit_failure, read_message
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.prompt import ImagePart
from holdfast.providers.items.shapes import as_object, objects

Json = dict[str, Any]
_UNKNOWN = "No conversation found with session ID"
_TOOLS = {
    "none": "",
    "read": "Read,Glob,Grep",
    "write": "Read,Glob,Grep,Edit,Write,NotebookEdit,Bash,TodoWrite",
}
_NO_FILES = {"permissions": {"deny": ["Read", "Read(**)", "Read(//**)"]}}
"""Without this, `@path` in a message reads a file even if the agent has no tools."""
_VARIABLES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
_encode = msgspec.json.Encoder().encode


class ClaudeCode:
    """The agent `claude`."""

    program = "claude"
    oldest_version: tuple[int, ...] = (2, 1, 0)
    credentials = (".claude/.credentials.json", ".credentials.json")
    supports_images = True
    install_command = "npm install --global @anthropic-ai/claude-code"
    login_command = "claude auth login"

    def invocation(self, request: AgentRequest) -> Invocation:
        """Return how to start it; the id of a new session is chosen here."""
        has_tools = request.permissions != "none"
        arguments = [
            "-p", "--verbose", "--input-format=stream-json", "--output-format=stream-json",
            "--include-partial-messages", "--safe-mode", "--strict-mcp-config",
            "--disable-slash-commands", "--setting-sources=",
            f"--tools={_TOOLS[request.permissions]}",
        ]  # fmt: skip
        variables = {**_VARIABLES, "CLAUDE_CONFIG_DIR": str(request.directory.config)}
        if has_tools:
            arguments.append("--permission-mode=bypassPermissions")
            variables["IS_SANDBOX"] = "1"
        else:
            arguments.append(f"--settings={_encode(_NO_FILES).decode()}")
            variables["CLAUDE_CODE_DISABLE_ATTACHMENTS"] = "1"
        if request.model is not None:
            arguments.append(f"--model={request.model}")
        if request.instructions:
            path = request.directory.write_config("instructions.txt", request.instructions)
            arguments.append(f"--system-prompt-file={path}")
        if request.session_id is not None:
            arguments.append(f"--resume={request.session_id}")
        else:
            arguments.append(f"--session-id={request.new_session}")
        return Invocation(arguments, variables)

    async def open(self, process: AgentProcess, request: AgentRequest) -> "ClaudeSession":
        """Return the session; its first turn shows whether the agent knows it."""
        return ClaudeSession(process, request.session_id or request.new_session)

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return whether the transcript, which is written late, contains the last message."""
        transcripts = [*(directory.config / "projects").glob(f"*/{session_id}.jsonl")]
        return bool(transcripts) and _contains(transcripts[0], mark)


def _contains(path: Path, mark: str) -> bool:
    try:
        with open_transcript(path) as file:
            return bool(mark) and mark.encode() in file.read()
    except OSError:
        return False


class ClaudeSession:
    """A session of a running `claude`."""

    version = ""

    def __init__(self, process: AgentProcess, session_id: str) -> None:
        self._process = process
        self.session_id = session_id

    async def run(self, turn_input: TurnInput, output: AgentOutput) -> AgentTurn:
        """Send a message and read until its result."""
        message = {"role": "user", "content": [_block(part) for part in turn_input.prompt]}
        await self._process.write_line(_encode({"type": "user", "message": message}))
        reading = _TurnReading(output)
        while (value := await read_message(self._process)) is not None:
            if value.get("type") == "result":
                return self._end(value, reading)
            self._check_session(value)
            reading.read(value)
            await output.drain()
        failure = await exit_failure(self._process)
        if _UNKNOWN in self._process.errors:
            raise stale_session(self._process.errors)
        raise failure

    def _end(self, result: Json, reading: "_TurnReading") -> AgentTurn:
        # `subtype` is `success` even if the API could not be reached.
        if result.get("is_error"):
            errors = "; ".join(map(str, result.get("errors") or ()))
            message = str(result.get("result") or errors or "the agent failed")
            if _UNKNOWN in message:
                raise stale_session(message)
            status = result.get("api_error_status")
            raise agent_failure(message, status if isinstance(status, int) else None)
        self._check_session(result)
        return AgentTurn(usage=_usage(result.get("usage")), mark=reading.last_message)

    def _check_session(self, value: Json) -> None:
        if value.get("session_id", self.session_id) != self.session_id:
            raise stale_session(
                f"the agent answered with session {value['session_id']}, not {self.session_id}",
                "agent_session_changed",
            )


class _TurnReading:
    """Reads the lines of one turn."""

    def __init__(self, output: AgentOutput) -> None:
        self._output = output
        self._calls: dict[str, Json] = {}
        self.last_message = ""

    def read(self, value: Json) -> None:
        """Read a line; the work of subagents is skipped: their result is a tool's output."""
        if value.get("parent_tool_use_id") is not None:
            return
        match value.get("type"):
            case "stream_event":
                self._read_event(as_object(value.get("event")))
            case "assistant":
                self._read_message(value)
            case "user":
                self._read_results(as_object(value.get("message")).get("content"))

    def _read_event(self, event: Json) -> None:
        if event.get("type") == "content_block_stop":
            self._output.end_part()
        match event.get("delta"):
            case {"type": "text_delta", "text": str() as text}:
                self._output.add_text(text)
            case {"type": "thinking_delta", "thinking": str() as text}:
                self._output.add_reasoning(text)

    def _read_message(self, value: Json) -> None:
        """Read a whole message; its texts were streamed, unless the agent itself wrote it."""
        self.last_message = str(value.get("uuid") or "")
        message = as_object(value.get("message"))
        is_synthetic = message.get("model") == "<synthetic>"
        for block in objects(message.get("content")):
            if block.get("type") == "tool_use":
                self._calls[str(block.get("id"))] = block
            elif block.get("type") == "text" and block.get("text") and is_synthetic:
                self._output.add_text(str(block["text"]))
                self._output.end_part()

    def _read_results(self, content: Any) -> None:
        for block in objects(content):
            call = self._calls.pop(str(block.get("tool_use_id")), None)
            if call is not None:
                self._output.add_tool_call(
                    str(call.get("name")),
                    call.get("input"),
                    _text(block.get("content")),
                    failed=bool(block.get("is_error")),
                )


def _block(part: str | ImagePart) -> Json:
    if isinstance(part, str):
        # A text that begins with a slash would be interpreted as a command of the agent.
        return {"type": "text", "text": re.sub(r"^(?=/)", " ", part) or " "}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "image", "source": source}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (block.get("text", f"[{block.get('type')}]") for block in objects(content))
    return "\n".join(map(str, texts))


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    counts = {name: value.get(name) or 0 for name in _COUNTS}
    if not all(isinstance(count, int) for count in counts.values()):
        raise agent_broken("the agent's usage is not made of numbers")
    return Usage(
        input_tokens=sum(count for name, count in counts.items() if name != "output_tokens"),
        cached_tokens=counts["cache_read_input_tokens"],
        output_tokens=counts["output_tokens"],
    )


_COUNTS = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip
