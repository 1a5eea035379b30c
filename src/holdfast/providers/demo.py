"""The demo model: no key, no network. It says what it is, and shows that it remembers."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.model.session import Usage
from holdfast.ports.provider import Answer, EventSink, ModelCall, ModelEvent, StateUse

DEMO_MODEL = "holdfast-demo"


class _Seen(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: Any = None


class DemoProvider:
    """Answers with what it was shown: how much, what came first, what came last."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id

    @property
    def name(self) -> str:
        """The upstream's name."""
        return "demo"

    def check(self, call: ModelCall) -> None:
        """Anything may be asked."""

    def state_use(self, model: str) -> StateUse | None:
        """Nothing is remembered here."""

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        text = _reply(call)
        return _answer(call, text, self._new_id("msg"))

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Tell the answer word by word."""
        text, item_id = _reply(call), self._new_id("msg")
        sink.write(_events(text, item_id))
        return _answer(call, text, item_id)

    async def models(self) -> list[dict[str, Any]]:
        """Return the one model there is."""
        return [{"id": DEMO_MODEL, "object": "model", "created": 0, "owned_by": "holdfast"}]

    async def close(self) -> None:
        """Nothing to let go of."""


def _reply(call: ModelCall) -> str:
    said = [_text(msgspec.json.decode(body, type=_Seen)) for body in call.items]
    mine = [text for role, text in said if role == "user"]
    if not mine:
        return "This is the Holdfast demo model. You have not said anything yet."
    reply = f"This is the Holdfast demo model; no real model is configured. You said: {mine[-1]!r}."
    if len(mine) > 1:
        reply += f" I remember {len(mine) - 1} earlier message(s); the first was {mine[0]!r}."
    return reply


def _text(seen: _Seen) -> tuple[str | None, str]:
    content = seen.content
    if isinstance(content, str):
        return seen.role, content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text", "") for part in parts if isinstance(part, dict)]
    return seen.role, "".join(text for text in texts if isinstance(text, str))


def _message(text: str, item_id: str, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content if text else [],
    }


def _answer(call: ModelCall, text: str, item_id: str) -> Answer:
    seen = sum(len(body) for body in call.items) // 4 + 1
    usage = Usage(input_tokens=seen, output_tokens=len(text.split()))
    return Answer(items=[msgspec.json.encode(_message(text, item_id, "completed"))], usage=usage)


def _events(text: str, item_id: str) -> list[ModelEvent]:
    def event(kind: str, **data: Any) -> ModelEvent:
        return ModelEvent(f"response.{kind}", {"type": f"response.{kind}", **data})

    at = {"item_id": item_id, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole = {**empty, "text": text}
    deltas = [word + " " for word in text.split(" ")]
    deltas[-1] = deltas[-1][:-1]
    return [
        event("output_item.added", output_index=0, item=_message("", item_id, "in_progress")),
        event("content_part.added", **at, part=empty),
        *(event("output_text.delta", **at, delta=delta, logprobs=[]) for delta in deltas),
        event("output_text.done", **at, text=text, logprobs=[]),
        event("content_part.done", **at, part=whole),
        event("output_item.done", output_index=0, item=_message(text, item_id, "completed")),
    ]
