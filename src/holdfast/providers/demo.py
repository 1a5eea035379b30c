"""The demo model: no key and no network; its answers show that it has the history.

Structured output and forced tools get a value that is valid for their schema.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.core.model.session import Usage
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall, ModelEvent
from holdfast.providers.items.response_events import CallPart
from holdfast.providers.json_instance import make_instance

DEMO_MODEL = "holdfast-demo"
MAX_QUOTED = 1000
"""How many characters of a message the reply quotes."""


class _Message(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: Any = None


class _ForcedCall(msgspec.Struct):
    name: str
    text: str
    """The arguments as JSON, or the input of a custom tool."""
    is_custom: bool = False


_SHAPING = frozenset({"text", "response_format", "tools"})
"""Fields by which a request demands a form of the answer."""


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
        if not _SHAPING.isdisjoint(call.fields) or not _SHAPING.isdisjoint(call.chat_fields):
            _shaped(call)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return self._answer(call)[0]

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the answer word by word."""
        answer, events = self._answer(call)
        sink.write(events)
        return answer

    def _answer(self, call: ModelCall) -> tuple[Answer, list[AnyEvent]]:
        """Return the answer and its events: a forced call, an instance of a schema, or a reply."""
        shaped = _shaped(call)
        if not isinstance(shaped, _ForcedCall):
            text, item_id = _reply(call) if shaped is None else shaped, self._new_id("msg")
            return _answer(call, _message(text, item_id, "completed"), text), _events(text, item_id)
        part = CallPart(self._new_id("fc"), 0, self._new_id("call"), is_custom=shaped.is_custom)
        part.name = shaped.name
        events: list[AnyEvent] = [*part.begin(), *part.add(shaped.text)]
        ended, item = part.end("completed")
        return _answer(call, item, shaped.text), [*events, *ended]

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


def _shaped(call: ModelCall) -> "_ForcedCall | str | None":
    """Return the call or the text that a request demands, or None if it may be any text."""
    choice = _field(call, "tool_choice")
    if choice == "required" or isinstance(choice, dict):
        forced = _forced_tool(choice, _field(call, "tools"))
        if forced is not None:
            return _forced_call(forced)
    text = _field(call, "text")
    wanted = text.get("format") if isinstance(text, dict) else _field(call, "response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "json_object":
        return '{"answer":"This is the Holdfast demo model."}'
    if kind != "json_schema" or not isinstance(wanted, dict):
        return None
    named = wanted.get("json_schema")
    schema = (named if isinstance(named, dict) else wanted).get("schema", True)
    return msgspec.json.encode(make_instance(schema)).decode()


def _field(call: ModelCall, name: str) -> Any:
    raw = call.fields.get(name) or call.chat_fields.get(name)
    return msgspec.json.decode(raw) if raw is not None else None


def _forced_tool(choice: Any, tools: Any) -> dict[str, Any] | None:
    """Return the tool that a choice forces; of several the first."""
    mine = [tool for tool in map(_flat, tools if isinstance(tools, list) else ()) if tool]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or choice
        if allowed.get("mode") != "required":
            return None
        names = {tool.get("name") for tool in map(_flat, allowed.get("tools") or ()) if tool}
        mine = [tool for tool in mine if tool.get("name") in names]
    elif isinstance(choice, dict):
        name = (_flat(choice) or {}).get("name")
        mine = [tool for tool in mine if tool.get("name") == name]
    return mine[0] if mine else None


def _flat(tool: Any) -> dict[str, Any] | None:
    """Return a function or a custom tool in the form of the Responses API."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        return None
    inner = tool.get(kind)
    return {**inner, "type": kind} if isinstance(inner, dict) else tool


def _forced_call(tool: dict[str, Any]) -> _ForcedCall:
    name = str(tool.get("name") or "")
    if tool["type"] == "custom":
        return _ForcedCall(name, "demo", is_custom=True)
    parameters = tool.get("parameters") or {"type": "object"}
    return _ForcedCall(name, msgspec.json.encode(make_instance(parameters)).decode())


def _answer(call: ModelCall, item: dict[str, Any], text: str) -> Answer:
    tokens = sum(len(body) for body in call.items) // 4 + 1
    usage = Usage(input_tokens=tokens, output_tokens=len(text.split()))
    return Answer(items=[msgspec.json.encode(item)], usage=usage)


def _events(text: str, item_id: str) -> list[AnyEvent]:
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
