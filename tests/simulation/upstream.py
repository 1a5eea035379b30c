"""A simulated provider that stores state and may lose it, for the real executor.

It answers as scripted, and stores its input under the state that it returns. A call that continues
a state must mean exactly that input, which is checked with every call.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import ProviderState, Usage
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.turns.executor import TurnExecutor, TurnResult
from holdfast.ports.provider import Answer, EventSink, ModelCall, ModelEvent, StateUse
from tests.simulation.compacting import repeated
from tests.simulation.model import Model, ModelFailure, Said, Script, text_of
from tests.simulation.tools import Witness, next_calls

CHAINED = "sim-chain"
CONVERSED = "sim-conversation"
"""A model whose states all mean one list of items, to which each call appends in place."""
REPLAYED = "sim-replay"
FIELD = "x_script"
BEGINNING = "answer"
"""What a stream shows of an answer at once."""

_RUN: ContextVar[ActiveRun | None] = ContextVar("run", default=None)
_read_script = msgspec.json.Decoder(Script).decode


class WitnessedResponder(TurnExecutor):
    """The real executor, which tells the model which run it works for."""

    async def execute(
        self, run: ActiveRun, request: TurnRequest, live: LiveResponse | None = None
    ) -> TurnResult:
        """Execute the turn."""
        _RUN.set(run)
        return await super().execute(run, request, live)


@dataclass
class Memory:
    """The provider's stored inputs, by state."""

    shown: dict[bytes, list[bytes]] = field(default_factory=dict)
    tool_steps: Counter[str] = field(default_factory=Counter)
    """How many answers of each run had tool calls."""
    forgotten: int = 0
    chained: Counter[str] = field(default_factory=Counter)


class Upstream:
    """A provider that answers as scripted."""

    def __init__(
        self,
        model: Model,
        memory: Memory,
        *,
        next_moment: Callable[[], int],
        blame: Callable[[str], None],
        kill: Callable[[], None],
        witness: Witness,
    ) -> None:
        self._model = model
        self._memory = memory
        self._next_moment = next_moment
        self._blame = blame
        self._kill = kill
        self._witness = witness

    @property
    def name(self) -> str:
        """The upstream's name."""
        return "sim"

    def check(self, call: ModelCall) -> None:
        """Accept every call."""

    detect = None

    def state_use(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> StateUse | None:
        """Return how a model uses provider state."""
        if model not in (CHAINED, CONVERSED):
            return None
        return StateUse(_state(model, b"").slot, is_mutable=model == CONVERSED)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        if _script_of(call) is None:
            with self._witness("a compaction"):
                return await self._sum_up(call)
        with self._witness("a call"):
            calls = self._tool_calls(call)
            if calls:
                return await self._call_tools(call, calls)
            said = await self._say(call)
            return self._answer(call, said)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Stream the answer in two halves."""
        with self._witness("a stream"):
            return await self._stream(call, sink)

    async def _stream(self, call: ModelCall, sink: EventSink) -> Answer:
        calls = self._tool_calls(call)
        if calls:
            for index, item in enumerate(calls):
                value = msgspec.json.decode(item.body)
                for kind in ("output_item.added", "output_item.done"):
                    sink.write([_event(kind, item=value, output_index=index)])
            return await self._call_tools(call, calls)
        sink.write([_event("output_item.added", item=_message("", "in_progress"))])
        sink.write([_event("content_part.added", part=_part(""))])
        sink.write([_event("output_text.delta", delta=BEGINNING)])
        said = await self._say(call)
        if said.pending_calls:
            item = msgspec.json.decode(said.items[0].body)
            sink.write([_event("output_item.done", item=item)])
        else:
            done = _event("output_item.done", item=_message(said.text, "completed"))
            rest = said.text.removeprefix(BEGINNING)
            sink.write([_event("output_text.delta", delta=rest), done])
        return self._answer(call, said)

    def _tool_calls(self, call: ModelCall) -> tuple[NewItem, ...]:
        """Return the calls of the gateway's tools in the model's next answer; may be empty."""
        run = _RUN.get()
        script = _script_of(call)
        if run is None or script is None or not script.tool_steps or "tools" not in call.fields:
            return ()
        run_id = run.fence.run_id
        given = self._memory.tool_steps[run_id]
        return next_calls(script.op, script.tool_steps, list(call.items), run_id, given)

    async def _call_tools(self, call: ModelCall, calls: tuple[NewItem, ...]) -> Answer:
        self._remember_or_fail(call)
        run = _RUN.get()
        assert run is not None
        self._memory.tool_steps[run.fence.run_id] += 1
        await asyncio.sleep(0.05)
        return self._answer(call, Said(calls, Usage(5, 1, 2, 0)))

    async def _sum_up(self, call: ModelCall) -> Answer:
        """Write a summary, which takes time and tokens."""
        await asyncio.sleep(0.1)
        said = message("assistant", repeated(text_of(call.items[-1])))
        return Answer(items=[said.body], usage=Usage(7, 0, 2, 0))

    async def _say(self, call: ModelCall) -> Said:
        run = _RUN.get()
        script = _script_of(call)
        assert run is not None
        assert script is not None
        self._remember_or_fail(call)
        heard = self._model.hear(run, script, list(call.items), self._next_moment())
        if script.ending == "kill" and heard.step == 0:
            self._kill()
        try:
            return await self._model.answer(heard, script, script.seconds)
        except ModelFailure as failure:
            kind = "transient" if failure.is_retryable else "terminal"
            raise ProviderFailure("the model failed", failure_class=kind) from failure  # type: ignore[arg-type]

    def _remember_or_fail(self, call: ModelCall) -> None:
        """Look the state up; it must stand for the input of the call that returned it."""
        if call.state is None:
            return
        known = self._memory.shown.get(call.state.value)
        if known is None or int(call.state.value[-5:]) % 5 == 0:
            self._memory.forgotten += 1
            raise ProviderFailure("no such response", failure_class="stale_state")
        self._memory.chained[call.model] += 1
        if known + call.new_items != call.items:
            texts = [text_of(body) for body in known + call.new_items]
            self._blame(f"I9 a chained call means {texts}")
        if call.model == CONVERSED:
            known += call.new_items

    def _answer(self, call: ModelCall, said: Said) -> Answer:
        run = _RUN.get()
        assert run is not None
        items = [item.body for item in said.items]
        state = None
        if call.keeps_state and call.model in (CHAINED, CONVERSED):
            state = _state(call.model, run.fence.run_id.encode())
            shown = [*call.items, *items]
            if call.model == CONVERSED and call.state is not None:
                shown = self._memory.shown[call.state.value]
                shown += items
            self._memory.shown[state.value] = shown
        return Answer(items=items, usage=said.usage, state=state)

    async def models(self) -> list[dict[str, Any]]:
        """Not used."""
        return []

    async def close(self) -> None:
        """Nothing to close."""


def _script_of(call: ModelCall) -> Script | None:
    """Return the script of a call; that of a schedule is in its instructions."""
    raw = call.fields.get(FIELD)
    if raw is None:
        instructions = msgspec.json.decode(call.fields.get("instructions", b'""'))
        raw = msgspec.Raw(instructions.encode()) if instructions.startswith('{"op"') else None
    return _read_script(raw) if raw is not None else None


def _state(model: str, value: bytes) -> ProviderState:
    return ProviderState("sim", "acc", model, value)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(text: str, status: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_part(text)] if text else [],
    }


def _event(kind: str, **data: Any) -> ModelEvent:
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return ModelEvent(f"response.{kind}", {"type": f"response.{kind}", **at, **data})
