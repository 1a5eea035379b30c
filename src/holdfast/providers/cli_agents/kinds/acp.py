"""Any agent that uses the Agent Client Protocol, in one process for several turns.

The protocol cannot disable an agent's own tools, so such an agent always runs isolated. Its
permission requests are refused, unless its settings allow tools and a person can answer.
"""

import asyncio
import hashlib
import uuid
from typing import Any

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.session import Usage
from holdfast.ports.provider import PermissionRequest
from holdfast.providers.cli_agents.agent import AgentRequest, AgentTurn, Invocation, TurnInput
from holdfast.providers.cli_agents.directories import SessionDirectory
from holdfast.providers.cli_agents.failures import (
    agent_broken,
    agent_failure,
    agent_not_started,
    stale_session,
)
from holdfast.providers.cli_agents.kinds.json_rpc import LATER, JsonRpc, result_of
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.prompt import ImagePart
from holdfast.providers.items.shapes import as_object, objects

Json = dict[str, Any]
PROTOCOL_VERSION = 1
ASKING = "asking"
"""The mark of a turn that waits for a permission; only its own process can continue it."""
MAX_REQUEST_BYTES = 64 * 1024
"""A longer call cannot be shown in full, so it is refused."""
MAX_NAME = 200
MAX_VERSION = 100
INITIALIZE_SECONDS = 15.0
"""How long a program may take to start and to answer the first message."""
_HINT = "check that `command` and `args` start it as an agent of the Agent Client Protocol"
_PERMISSION = "session/request_permission"
_SHOWN = ("kind", "rawInput", "locations", "content")
"""The fields of a call that a person sees, in addition to its title."""
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
        """Return how to start it; the command comes from the settings."""
        data = {
            "XDG_CACHE_HOME": ".cache",
            "XDG_CONFIG_HOME": ".config",
            "XDG_DATA_HOME": ".local/share",
            "XDG_STATE_HOME": ".local/state",
        }
        config = request.directory.config
        return Invocation([], {name: str(config / path) for name, path in data.items()})

    async def open(self, process: AgentProcess, request: AgentRequest) -> "AcpSession":
        """Start or load a session; raise a stale-state failure if it cannot be loaded."""
        permissions = _Permissions()
        rpc = JsonRpc(process, permissions.answer)
        answer = await initialize(rpc)
        version = _version(answer)
        if request.session_id is not None and request.version != version:
            raise stale_session(
                f"the session was written by version {request.version}, this is {version}",
                "agent_version_changed",
            )
        params: Json = {"cwd": str(request.directory.work), "mcpServers": []}
        if request.session_id is None:
            session_id = (await rpc.call("session/new", params)).get("sessionId")
            if not isinstance(session_id, str):
                raise agent_broken("the agent's new session has no id")
            return AcpSession(rpc, session_id, version, request.instructions, permissions)
        if not as_object(answer.get("agentCapabilities")).get("loadSession"):
            raise stale_session("the agent cannot load its sessions")
        params["sessionId"] = request.session_id
        await rpc.call("session/load", params, is_stale_on_error=True)
        if _digest(_last_answer(rpc.take_waiting())) != request.mark:
            raise stale_session("the agent's session does not end with the last turn")
        return AcpSession(rpc, request.session_id, version, request.instructions, permissions)

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return whether the turn ended; `open` compares the replayed history."""
        del directory, session_id
        return mark != ASKING


async def initialize(rpc: JsonRpc) -> Json:
    """Open a connection; return what the agent tells about itself, or raise why it does not."""
    try:
        async with asyncio.timeout(INITIALIZE_SECONDS):
            answer = await rpc.call(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "clientCapabilities": _NO_CAPABILITIES,
                    "clientInfo": {"name": "holdfast", "version": "1"},
                },
            )
    except TimeoutError as exc:
        raise agent_not_started(
            f"the agent did not answer `initialize` within {INITIALIZE_SECONDS:g} s: {_HINT}"
        ) from exc
    except ProviderFailure as failure:
        if failure.provider_code != "agent_exited":
            raise
        raise agent_not_started(f"{failure.message}, before `initialize`: {_HINT}") from failure
    if answer.get("protocolVersion") != PROTOCOL_VERSION:
        raise agent_broken(f"the agent speaks version {answer.get('protocolVersion')} of ACP")
    return answer


def _version(answer: Json) -> str:
    """Return the agent's version as its answer to `initialize` tells it; empty if it does not."""
    version = as_object(answer.get("agentInfo")).get("version")
    return version[:MAX_VERSION] if isinstance(version, str) else ""


class AcpSession:
    """A session of a running agent."""

    def __init__(
        self,
        rpc: JsonRpc,
        session_id: str,
        version: str,
        instructions: str,
        permissions: "_Permissions",
    ) -> None:
        self._rpc = rpc
        self.session_id = session_id
        self.version = version
        self._instructions = instructions
        self._permissions = permissions
        self._prompt_id = 0
        self._reading = _TurnReading()
        self._held: Json | None = None
        """The permission request that has no answer yet."""

    async def run(self, turn_input: TurnInput, output: AgentOutput) -> AgentTurn:
        """Send a prompt, or the answer to a request; read until the end or the next request."""
        self._permissions.can_ask = turn_input.can_ask
        if self._held is not None and turn_input.is_allowed is not None:
            held, self._held = self._held, None
            await self._rpc.reply(
                held, _outcome(held.get("params"), is_allowed=turn_input.is_allowed)
            )
        else:
            await self._send(turn_input)
        while True:
            message = await self._rpc.next_message()
            if "method" not in message and message.get("id") == self._prompt_id:
                return self._end(message)
            params = as_object(message.get("params"))
            if message.get("method") == "session/update" and self._is_ours(params):
                self._reading.read(as_object(params.get("update")), output)
                await output.drain()
            elif message.get("method") == _PERMISSION and "id" in message:
                request = self._reading.describe(params.get("toolCall"))
                if request is not None:
                    self._held = message
                    return AgentTurn(mark=ASKING, request=request)
                await self._rpc.reply(message, _outcome(params, is_allowed=False))

    async def _send(self, turn_input: TurnInput) -> None:
        prompt = turn_input.prompt
        if self._instructions:
            # The protocol has no system prompt.
            prompt = [f"Instructions for this conversation:\n{self._instructions}\n\n", *prompt]
            self._instructions = ""
        blocks = [_block(part) for part in prompt]
        params: Json = {"sessionId": self.session_id, "prompt": blocks}
        self._prompt_id = await self._rpc.send("session/prompt", params)
        self._reading = _TurnReading()

    def _end(self, message: Json) -> AgentTurn:
        result = result_of(message)
        if result.get("stopReason") not in ("end_turn", "max_tokens", "max_turn_requests"):
            raise agent_failure(f"the agent stopped: {result.get('stopReason')}", 400)
        return AgentTurn(usage=_usage(result.get("usage")), mark=_digest(self._reading.text))

    def _is_ours(self, params: Json) -> bool:
        return bool(params.get("sessionId", self.session_id) == self.session_id)


class _TurnReading:
    """Reads the updates of one turn."""

    def __init__(self) -> None:
        self._calls: dict[str, Json] = {}
        self.text = ""

    def read(self, update: Json, output: AgentOutput) -> None:
        """Read an update."""
        text = _text(update.get("content"))
        match update.get("sessionUpdate"):
            case "agent_message_chunk" if text:
                self.text += text
                output.add_text(text)
            case "agent_thought_chunk" if text:
                output.add_reasoning(text)
            case "tool_call" | "tool_call_update":
                self._read_tool(update, output)

    def describe(self, tool_call: Any) -> PermissionRequest | None:
        """Return a call as a permission request, or None if it cannot be shown in full."""
        call = self._known(as_object(tool_call))
        shown = {name: call[name] for name in _SHOWN if call.get(name)}
        name = str(call.get("title") or call.get("kind") or "tool")
        if len(name) > MAX_NAME:
            shown["title"] = name  # the name is cut, but the title may be the whole command
        arguments = msgspec.json.encode(shown)
        if not shown or len(arguments) > MAX_REQUEST_BYTES:
            return None
        return PermissionRequest(
            call_id=f"call_{uuid.uuid4().hex}",
            upstream="",
            name=name[:MAX_NAME],
            arguments=arguments.decode(),
        )

    def _known(self, update: Json) -> Json:
        """Merge an update into what is known about its call; return the call."""
        call = self._calls.setdefault(str(update.get("toolCallId")), {})
        call |= {name: value for name, value in update.items() if value is not None}
        return call

    def _read_tool(self, update: Json, output: AgentOutput) -> None:
        call = self._known(update)
        if call.get("status") in ("completed", "failed") and not call.get("is_written"):
            call["is_written"] = True
            output.add_tool_call(
                str(call.get("title") or call.get("kind") or "tool"),
                call.get("rawInput") or {},
                _tool_output(call),
                failed=call["status"] == "failed",
            )


class _Permissions:
    """Decides which requests of an agent are shown to a person."""

    def __init__(self) -> None:
        self.can_ask = False

    def answer(self, method: str, params: Json) -> Json | None:
        """Refuse every request, except for a permission that can be given once."""
        if method != _PERMISSION:
            return None
        if self.can_ask and _option(params, "allow_once") is not None:
            return LATER
        return _outcome(params, is_allowed=False)


def _outcome(params: Any, *, is_allowed: bool) -> Json:
    """Return the answer to a permission request; a call is allowed only once."""
    for kind in ("allow_once",) if is_allowed else ("reject_once", "reject_always"):
        option = _option(params, kind)
        if option is not None:
            return {"outcome": {"outcome": "selected", "optionId": option}}
    return {"outcome": {"outcome": "cancelled"}}


def _option(params: Any, kind: str) -> str | None:
    """Return the id of the first option of a kind."""
    options = params.get("options") if isinstance(params, dict) else None
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict) and option.get("kind") == kind:
            option_id = option.get("optionId")
            return option_id if isinstance(option_id, str) else None
    return None


def _last_answer(messages: list[Json]) -> str:
    """Return the agent's text after the last message of the user, in a replayed history."""
    text = ""
    for message in messages:
        update = as_object(as_object(message.get("params")).get("update"))
        if update.get("sessionUpdate") == "user_message_chunk":
            text = ""
        elif update.get("sessionUpdate") == "agent_message_chunk":
            text += _text(update.get("content"))
    return text


def _digest(text: str) -> str:
    # An agent may store its text without surrounding white space.
    return hashlib.sha256("".join(text.split()).encode()).hexdigest()


def _text(content: Any) -> str:
    text = content.get("text") if isinstance(content, dict) else None
    return text if isinstance(text, str) else ""


def _tool_output(call: Json) -> str:
    texts = [_text(part.get("content")) for part in objects(call.get("content"))]
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
