"""Rebuild items from their events, for servers that do not send the finished items."""

from io import StringIO
from typing import Any

import msgspec

from holdfast.core.openai.stream_events import Delta

Json = dict[str, Any]


class _TextField(msgspec.Struct, frozen=True):
    """Where a text belongs: in a numbered part of one of the item's lists, or in a field."""

    field: str
    kind: str
    """The type of the part, or for a field, the type of the item."""
    number: str | None = None
    """The event's field with the number of the part; None for a field."""
    text: str = "text"
    """The name of the text, in the part and in its `done` event."""


_TEXT_FIELDS = {
    "response.output_text": _TextField("content", "output_text", "content_index"),
    "response.refusal": _TextField("content", "refusal", "content_index", "refusal"),
    "response.reasoning_text": _TextField("content", "reasoning_text", "content_index"),
    "response.reasoning_summary_text": _TextField("summary", "summary_text", "summary_index"),
    "response.function_call_arguments": _TextField("arguments", "function_call", text="arguments"),
    "response.custom_tool_call_input": _TextField("input", "custom_tool_call", text="input"),
    "response.mcp_call_arguments": _TextField("arguments", "mcp_call", text="arguments"),
    "response.code_interpreter_call_code": _TextField("code", "code_interpreter_call", text="code"),
}
_MESSAGE_PARTS = frozenset({"output_text", "refusal"})
_NEED_NAME = frozenset({"function_call", "custom_tool_call", "mcp_call"})
"""Items that are useless without the name of the tool."""


class ItemAccumulator:
    """One item, built from its events."""

    def __init__(self) -> None:
        self._fields: Json = {}
        self._texts: dict[tuple[_TextField, int], StringIO] = {}

    def begin(self, item: Json) -> None:
        """Add the fields of the first version of the item."""
        self._fields = {**self._fields, **item}

    def add(self, kind: str, event: Json) -> None:
        """Add an event; events that have no content of the item are ignored."""
        name, _, step = kind.rpartition(".")
        target = _TEXT_FIELDS.get(name)
        if target is None or step not in ("delta", "done"):
            return
        text = event.get("delta" if step == "delta" else target.text)
        if not isinstance(text, str):
            return
        number = event.get(target.number) if target.number is not None else 0
        key = (target, number if isinstance(number, int) else 0)
        if step == "delta":
            self._text(key).write(text)
        else:
            # The `done` event has the whole text.
            self._texts[key] = StringIO()
            self._texts[key].write(text)
        for source, field in (("item_id", "id"), ("name", "name")):
            if isinstance(event.get(source), str) and field not in self._fields:
                self._fields = {**self._fields, field: event[source]}

    def _text(self, key: tuple[_TextField, int]) -> StringIO:
        if key not in self._texts:
            self._texts[key] = StringIO()
        return self._texts[key]

    def text_of(self, delta: Delta) -> StringIO:
        """Return the buffer for the text of this delta and of those that continue it."""
        target = _TEXT_FIELDS.get(delta.type.removesuffix(".delta"))
        if target is None:
            return StringIO()
        number = getattr(delta, target.number) if target.number is not None else 0
        if "id" not in self._fields:
            self._fields = {**self._fields, "id": delta.item_id}
        return self._text((target, number if isinstance(number, int) else 0))

    def item(self, status: str) -> Json | None:
        """Return the item as if it ended here, or None if its events are not enough for an item."""
        built: Json = {**self._fields}
        # Encrypted content of the first version is not the final content.
        built.pop("encrypted_content", None)
        lists: dict[str, list[Json]] = {}
        for target, number in sorted(self._texts, key=lambda key: key[1]):
            text = self._texts[target, number].getvalue()
            if target.number is None:
                built.setdefault("type", target.kind)
                built[target.field] = text
            else:
                is_message = target.kind in _MESSAGE_PARTS
                built.setdefault("type", "message" if is_message else "reasoning")
                lists.setdefault(target.field, []).append(_part(target, text))
        return _finished(built | lists, status)


def _part(target: _TextField, text: str) -> Json:
    extra: Json = {"annotations": [], "logprobs": []} if target.kind == "output_text" else {}
    return {"type": target.kind, target.text: text, **extra}


def _finished(item: Json, status: str) -> Json | None:
    kind = item.get("type")
    if kind is None or (kind in _NEED_NAME and not item.get("name")):
        return None
    if kind == "message":
        item = {"role": "assistant", **item}
        if not item.get("content"):
            return None
    elif kind == "reasoning":
        item = {"summary": [], **item}
        return {k: v for k, v in item.items() if k != "status"}
    return {**item, "status": status}
