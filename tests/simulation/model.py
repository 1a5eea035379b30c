"""A small scripted model that is slow or fails on request, and records its calls.

It is outside of every process, so its record shows what a model saw for which run.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from holdfast.core.model.items import NewItem, message, write_item
from holdfast.core.model.session import Usage
from holdfast.engine.sessions.active_run import ActiveRun

EntryPoint = Literal["server", "embedded", "turn_service", "request_task", "stream"]
"""The API through which a request arrives; `request_task` executes the turn in its own task."""
Ending = Literal["answer", "fail", "fail_retryable", "calls", "kill"]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The model's behaviour in one turn; it is part of the turn's stored request."""

    op: str
    seconds: float = 0.0
    ending: Ending = "answer"
    checkpoints: int = 0
    """Items that are committed before the end."""
    partial: bool = False
    """Whether a partial item is recorded on the way."""
    words: int = 0
    """How many words its answer has."""
    tool_steps: int = 0
    """How often it calls the gateway's tools before it answers."""
    asks: bool = False
    """Whether one of these tools needs an approval."""


class ModelFailure(Exception):
    """The model failed."""

    def __init__(self, *, is_retryable: bool) -> None:
        super().__init__("the model failed")
        self.is_retryable = is_retryable


@dataclass(slots=True)
class ModelCall:
    """One call, as the model's server records it."""

    number: int
    moment: int
    op: str
    run_id: str
    turn_id: str
    session_id: str
    step: int
    head_seq: int
    record_no: int
    context: tuple[bytes, ...]
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a run."""

    items: tuple[NewItem, ...]
    usage: Usage
    pending_calls: tuple[str, ...] = ()
    text: str = ""


@dataclass
class Model:
    """Answers runs, and records each call."""

    calls: list[ModelCall] = field(default_factory=list)

    def hear(self, run: ActiveRun, script: Script, context: list[bytes], moment: int) -> ModelCall:
        """Record a call."""
        call = ModelCall(
            len(self.calls) + 1,
            moment,
            script.op,
            run.fence.run_id,
            run.turn.id,
            run.session.id,
            run.turn.step,
            run.session.head_seq,
            run._shown_records,
            tuple(context),
        )
        self.calls.append(call)
        return call

    async def answer(self, call: ModelCall, script: Script, seconds: float) -> Said:
        """Wait, then answer or fail."""
        await asyncio.sleep(seconds)
        ending = script.ending if call.step == 0 else "answer"
        if ending in ("fail", "fail_retryable"):
            raise ModelFailure(is_retryable=ending == "fail_retryable")
        call.is_answered = True
        usage = Usage(10 + call.number, call.number, 3, 1)
        if ending == "calls":
            call_id = f"call_{script.op}_{call.run_id}"
            item = write_item(
                {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
            )
            return Said((item,), usage, (call_id,), call_id)
        text = f"answer {script.op} {'so to say ' * script.words}{call.run_id}"
        return Said((message("assistant", text),), usage, (), text)


def text_of(body: bytes) -> str:
    """Return the text of a message, or the call id of any other item."""
    value: dict[str, Any] = msgspec.json.decode(body)
    content = value.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(value.get("call_id", ""))
