"""The demo model: no key and no network; its answers show that it has the history."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.core.model.session import Usage
from holdfast.ports.provider import Answer, EventSink, ModelCall, ModelEvent

DEMO_MODEL = "holdfast-demo"
MAX_QUOTED = 1000
"""How many characters of a message the reply quotes."""


class _Message(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: Any = None


class DemoProvider:
    """Answers with the first and last message of the user, and their count."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id

    name = "demo"
    state_use = None
    detect = None

    def check(self, call: ModelCall) -> None:
        """Raise for several choices; accept everything else."""
        choices = call.chat_fields.get("n") or call.fields.get("n")
        if choices is not None and msgspec.json.decode(choices) not in (None, 1):
            raise UnsupportedByUpstream("n", self.name)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        text = _reply(call)
        return _answer(call, text, self._new_id("msg"))

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the answer word by word."""
        text, item_id = _reply(call), self._new_id("msg")
        sink.write(_events(text, item_id))
        return _answer(call, text, item_id)

    async def models(self) -> list[dict[str, Any]]:
        """Return the only model."""
        return [{"id": DEMO_MODEL, "object": "model", "created": 0, "owned_by": "holdfast"}]

    async def close(self) -> None:
        """Do nothing."""


def _reply(call: ModelCall) -> str:
    messages = [_text(msgspec.json.decode(body, type=_Message)) for body in call.items]
    texts = [text for role, text in messages if role == "user"]
    if not texts:
        return "This is the Holdfast demo model. You have not said anything yet."
    intro = "This is the Holdfast demo model; no real model is configured."
    reply = f"{intro} You said: {_quoted(texts[-1])}."
    if len(texts) > 1:
        reply += (
            f" I remember {len(texts) - 1} earlier message(s); the first was {_quoted(texts[0])}."
        )
    return reply


def _text(message: _Message) -> tuple[str | None, str]:
    content = message.content
    if isinstance(content, str):
        return message.role, content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text", "") for part in parts if isinstance(part, dict)]
    return message.role, "".join(text for text in texts if isinstance(text, str))


def _quoted(text: str) -> str:
    """Return a text as the reply quotes it, clipped because the reply repeats it several times."""
    return repr(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…")


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
    tokens = sum(len(body) for body in call.items) // 4 + 1
    usage = Usage(input_tokens=tokens, output_tokens=len(text.split()))
    return Answer(items=[msgspec.json.encode(_message(text, item_id, "completed"))], usage=usage)


def _events(text: str, item_id: str) -> list[ModelEvent]:
    def event(kind: str, **data: Any) -> ModelEvent:
        return ModelEvent(f"response.{kind}", {"type": f"response.{kind}", **data})

    position = {"item_id": item_id, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole = {**empty, "text": text}
    deltas = [word + " " for word in text.split(" ")]
    deltas[-1] = deltas[-1][:-1]
    return [
        event("output_item.added", output_index=0, item=_message("", item_id, "in_progress")),
        event("content_part.added", **position, part=empty),
        *(event("output_text.delta", **position, delta=delta, logprobs=[]) for delta in deltas),
        event("output_text.done", **position, text=text, logprobs=[]),
        event("content_part.done", **position, part=whole),
        event("output_item.done", output_index=0, item=_message(text, item_id, "completed")),
    ]
