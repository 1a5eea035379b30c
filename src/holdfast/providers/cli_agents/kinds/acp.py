"""Any agent of the Agent Client Protocol, in one process for several turns.

The protocol cannot take an agent's own tools away. So such an agent always runs isolated,
and what it asks permission for is refused.
"""

import hashlib
from typing import Any

from holdfast.core.model.session import Usage
from holdfast.providers.cli_agents.agent import AgentRequest, AgentTurn, Invocation
from holdfast.providers.cli_agents.directories import SessionDirectory
from holdfast.providers.cli_agents.failures import agent_broken, agent_failure, stale_session
from holdfast.providers.cli_agents.kinds.json_rpc import JsonRpc, result_of
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.prompt import ImagePart, Prompt

Json = dict[str, Any]
PROTOCOL_VERSION = 1
_NO_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class AcpAgent:
    """An agent whose program speaks the protocol on its standard input and output."""

    program = ""
    oldest_version: tuple[int, ...] = ()
    credentials = ("", "")
    supports_images = True
    install_command = ""
    login_command = ""

    def invocation(self, request: AgentRequest) -> Invocation:
        """Return how to start it: the settings name everything."""
        data = {
            "XDG_CACHE_HOME": ".cache",
            "XDG_CONFIG_HOME": ".config",
            "XDG_DATA_HOME": ".local/share",
            "XDG_STATE_HOME": ".local/state",
        }
        config = request.directory.config
        return Invocation([], {name: str(config / path) for name, path in data.items()})

    async def open(self, process: AgentProcess, request: AgentRequest) -> "AcpSession":
        """Start a session or load one; one that cannot be loaded is stale."""
        rpc = JsonRpc(process, _refuse_permission)
        answer = await rpc.call(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "clientCapabilities": _NO_CAPABILITIES,
                "clientInfo": {"name": "holdfast", "version": "1"},
            },
        )
        if answer.get("protocolVersion") != PROTOCOL_VERSION:
            raise agent_broken(f"the agent speaks version {answer.get('protocolVersion')} of ACP")
        params: Json = {"cwd": str(request.directory.work), "mcpServers": []}
        if request.session_id is None:
            session_id = (await rpc.call("session/new", params)).get("sessionId")
            if not isinstance(session_id, str):
                raise agent_broken("the agent's new session has no id")
            return AcpSession(rpc, session_id, request.instructions)
        if not (answer.get("agentCapabilities") or {}).get("loadSession"):
            raise stale_session("the agent cannot load its sessions")
        params["sessionId"] = request.session_id
        await rpc.call("session/load", params, is_stale_on_error=True)
        if _digest(_last_answer(rpc.take_waiting())) != request.mark:
            raise stale_session("the agent's session does not end with the last turn")
        return AcpSession(rpc, request.session_id, request.instructions)

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return True: a session that is loaded tells its whole history, which is compared."""
        del directory, session_id, mark
        return True


class AcpSession:
    """A session of a running agent."""

    def __init__(self, rpc: JsonRpc, session_id: str, instructions: str) -> None:
        self._rpc = rpc
        self.session_id = session_id
        self._instructions = instructions

    async def run(self, prompt: Prompt, output: AgentOutput) -> AgentTurn:
        """Send a prompt and read until its answer."""
        if self._instructions:
            # The protocol has no system prompt.
            prompt = [f"Instructions for this conversation:\n{self._instructions}\n\n", *prompt]
            self._instructions = ""
        blocks = [_block(part) for part in prompt]
        params: Json = {"sessionId": self.session_id, "prompt": blocks}
        call_id = await self._rpc.send("session/prompt", params)
        reading = _TurnReading(output)
        while True:
            message = await self._rpc.next_message()
            if "method" not in message and message.get("id") == call_id:
                break
            params = message.get("params") or {}
            if message.get("method") == "session/update" and self._is_ours(params):
                reading.read(params.get("update") or {})
                await output.drain()
        result = result_of(message)
        if result.get("stopReason") not in ("end_turn", "max_tokens", "max_turn_requests"):
            raise agent_failure(f"the agent stopped: {result.get('stopReason')}", 400)
        return AgentTurn(usage=_usage(result.get("usage")), mark=_digest(reading.text))

    def _is_ours(self, params: Json) -> bool:
        return bool(params.get("sessionId", self.session_id) == self.session_id)


class _TurnReading:
    """Reads the updates of one turn."""

    def __init__(self, output: AgentOutput) -> None:
        self._output = output
        self._calls: dict[str, Json] = {}
        self.text = ""

    def read(self, update: Json) -> None:
        """Read an update."""
        text = _text((update.get("content") or {}) if "content" in update else {})
        match update.get("sessionUpdate"):
            case "agent_message_chunk" if text:
                self.text += text
                self._output.add_text(text)
            case "agent_thought_chunk" if text:
                self._output.add_reasoning(text)
            case "tool_call" | "tool_call_update":
                self._read_tool(update)

    def _read_tool(self, update: Json) -> None:
        call = self._calls.setdefault(str(update.get("toolCallId")), {})
        call |= {name: value for name, value in update.items() if value is not None}
        if call.get("status") in ("completed", "failed") and not call.get("is_written"):
            call["is_written"] = True
            self._output.add_tool_call(
                str(call.get("title") or call.get("kind") or "tool"),
                call.get("rawInput") or {},
                _tool_output(call),
                failed=call["status"] == "failed",
            )


def _refuse_permission(method: str, params: Json) -> Json | None:
    """Answer a request for permission with its refusal; every other request is refused."""
    if method != "session/request_permission":
        return None
    options = [option for option in params.get("options") or () if isinstance(option, dict)]
    for kind in ("reject_once", "reject_always"):
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}}
    return {"outcome": {"outcome": "cancelled"}}


def _last_answer(messages: list[Json]) -> str:
    """Return the agent's text after the last message of the user, in a replayed history."""
    text = ""
    for message in messages:
        update = (message.get("params") or {}).get("update") or {}
        if update.get("sessionUpdate") == "user_message_chunk":
            text = ""
        elif update.get("sessionUpdate") == "agent_message_chunk":
            text += _text(update.get("content") or {})
    return text


def _digest(text: str) -> str:
    # An agent may store its text without the space around it.
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()


def _text(content: Any) -> str:
    text = content.get("text") if isinstance(content, dict) else None
    return text if isinstance(text, str) else ""


def _tool_output(call: Json) -> str:
    parts = [part for part in call.get("content") or () if isinstance(part, dict)]
    texts = [_text(part.get("content")) for part in parts]
    raw = call.get("rawOutput")
    return "\n".join(filter(None, texts)) or ("" if raw is None else str(raw))


def _block(part: str | ImagePart) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.url:
        return {"type": "resource_link", "uri": part.url, "name": "image"}
    return {"type": "image", "mimeType": part.media_type, "data": part.data}


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None

    def count(name: str) -> int:
        number = value.get(name)
        return number if isinstance(number, int) and number >= 0 else 0

    return Usage(
        input_tokens=count("inputTokens") + count("cachedReadTokens") + count("cachedWriteTokens"),
        cached_tokens=count("cachedReadTokens"),
        output_tokens=count("outputTokens") + count("thoughtTokens"),
        reasoning_tokens=count("thoughtTokens"),
    )
