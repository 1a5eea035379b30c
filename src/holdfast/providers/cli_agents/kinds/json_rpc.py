"""JSON-RPC by lines with an agent: messages are read in order, requests are answered."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.providers.cli_agents.failures import agent_exited, agent_failure, stale_session
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.items.shapes import as_object

Json = dict[str, Any]
Answer = Callable[[str, Json], Json | None]
"""Returns the result for an agent's request; None refuses it, `LATER` postpones the answer."""
LATER: Json = {"later": True}
"""The result for a request that the caller of `next_message` answers with `reply`."""
_REFUSED = -32601
_encode = msgspec.json.Encoder().encode


async def read_message(process: AgentProcess) -> Json | None:
    """Return the next message of an agent, or None at the end of its output.

    Lines that are no messages, such as warnings, are kept for the failure of an agent that exits.
    """
    while line := await process.read_line():
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = None
        if isinstance(message, dict):
            return message
        process.note_unreadable(line)
    return None


async def exit_failure(process: AgentProcess) -> ProviderFailure:
    """Return the failure for an agent whose output ended without an answer."""
    code = await process.exit_code()
    return agent_exited(process.errors, process.unreadable, code)


def refuse_all(method: str, params: Json) -> Json | None:
    """Refuse every request."""
    del method, params
    return None


class JsonRpc:
    """The client side of a connection."""

    def __init__(self, process: AgentProcess, answer: Answer = refuse_all) -> None:
        self._process = process
        self._answer = answer
        self._last_id = 0
        self._waiting: list[Json] = []
        """Notifications that arrived before the answer to a call."""

    async def call(self, method: str, params: Json, *, is_stale_on_error: bool = False) -> Json:
        """Return the result of a method; raise if it fails."""
        call_id = await self.send(method, params)
        while True:
            message = await self.next_message()
            if "method" in message:
                self._waiting.append(message)
            elif message.get("id") == call_id:
                return result_of(message, is_stale_on_error=is_stale_on_error)

    async def send(self, method: str, params: Json) -> int:
        """Send a request; return its id."""
        self._last_id += 1
        await self._write({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    async def notify(self, method: str, params: Json) -> None:
        """Send a notification."""
        await self._write({"method": method, "params": params})

    def take_waiting(self) -> list[Json]:
        """Return the notifications that arrived before the answers to calls."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def next_message(self) -> Json:
        """Return the next notification or answer, or a request that is answered later.

        Every other request of the agent is answered here.
        """
        while (message := await read_message(self._process)) is not None:
            if "method" not in message or "id" not in message:
                return message
            if not await self._respond(message):
                return message
        raise await exit_failure(self._process)

    async def reply(self, request: Json, result: Json) -> None:
        """Answer a request that was postponed."""
        await self._write({"id": request["id"], "result": result})

    async def _respond(self, request: Json) -> bool:
        """Answer a request; return False if the answer is postponed."""
        result = self._answer(str(request["method"]), as_object(request.get("params")))
        if result is LATER:
            return False
        if result is not None:
            await self.reply(request, result)
        else:
            refusal = {"code": _REFUSED, "message": "not available in this session"}
            await self._write({"id": request["id"], "error": refusal})
        return True

    async def _write(self, message: Json) -> None:
        await self._process.write_line(_encode({"jsonrpc": "2.0", **message}))


def result_of(message: Json, *, is_stale_on_error: bool = False) -> Json:
    """Return the result in an answer, or raise its error."""
    error = message.get("error")
    if error is not None:
        text = str(error.get("message") if isinstance(error, dict) else error)
        raise stale_session(text) if is_stale_on_error else agent_failure(text)
    result = message.get("result")
    return result if isinstance(result, dict) else {}
