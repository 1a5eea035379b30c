"""Items in the making, rebuilt from their events where a server never shows them finished."""

from typing import Any

import msgspec

from holdfast.core.openai.stream_events import Delta

Json = dict[str, Any]


class _Place(msgspec.Struct, frozen=True):
    """Where a text belongs: in a numbered part of a list of its item, or in a field."""

    field: str
    kind: str
    """What the part is called; for a field, the kind of its item."""
    number: str | None = None
    """The event's word for which part it is; a field has none."""
    text: str = "text"
    """The word for the text, in the part and in the event that ends it."""


_PLACES = {
    "response.output_text": _Place("content", "output_text", "content_index"),
    "response.refusal": _Place("content", "refusal", "content_index", "refusal"),
    "response.reasoning_text": _Place("content", "reasoning_text", "content_index"),
    "response.reasoning_summary_text": _Place("summary", "summary_text", "summary_index"),
    "response.function_call_arguments": _Place("arguments", "function_call", text="arguments"),
    "response.custom_tool_call_input": _Place("input", "custom_tool_call", text="input"),
    "response.mcp_call_arguments": _Place("arguments", "mcp_call", text="arguments"),
    "response.code_interpreter_call_code": _Place("code", "code_interpreter_call", text="code"),
}
_MESSAGE_PARTS = frozenset({"output_text", "refusal"})
_NAMED = frozenset({"function_call", "custom_tool_call", "mcp_call"})
"""Items that are nothing without the name of what is called."""


class ItemAccumulator:
    """One item, as far as its events have told it."""

    def __init__(self) -> None:
        self._begun: Json = {}
        self._texts: dict[tuple[_Place, int], list[str]] = {}

    def begin(self, item: Json) -> None:
        """Take in the item as it was shown when it began."""
        self._begun = {**self._begun, **item}

    def grow(self, kind: str, event: Json) -> None:
        """Take in an event; those that say nothing of the item's content are passed over."""
        name, _, step = kind.rpartition(".")
        place = _PLACES.get(name)
        if place is None or step not in ("delta", "done"):
            return
        said = event.get("delta" if step == "delta" else place.text)
        if not isinstance(said, str):
            return
        number = event.get(place.number) if place.number is not None else 0
        at = (place, number if isinstance(number, int) else 0)
        if step == "delta":
            self._texts.setdefault(at, []).append(said)
        else:
            # What ends a text has all of it.
            self._texts[at] = [said]
        for told, field in (("item_id", "id"), ("name", "name")):
            if isinstance(event.get(told), str) and field not in self._begun:
                self._begun = {**self._begun, field: event[told]}

    def texts(self, delta: Delta) -> list[str]:
        """Return where the words of this delta belong, and those of more like it."""
        place = _PLACES.get(delta.type.removesuffix(".delta"))
        if place is None:
            return []
        number = getattr(delta, place.number) if place.number is not None else 0
        if "id" not in self._begun:
            self._begun = {**self._begun, "id": delta.item_id}
        return self._texts.setdefault((place, number if isinstance(number, int) else 0), [])

    def item(self, status: str) -> Json | None:
        """Return the item as if it ended here; None where nothing was said that makes one."""
        built: Json = {**self._begun}
        # What was sealed when it began is not what it would have been sealed to in the end.
        built.pop("encrypted_content", None)
        lists: dict[str, list[Json]] = {}
        for place, number in sorted(self._texts, key=lambda at: at[1]):
            text = "".join(self._texts[place, number])
            if place.number is None:
                built.setdefault("type", place.kind)
                built[place.field] = text
            else:
                is_message = place.kind in _MESSAGE_PARTS
                built.setdefault("type", "message" if is_message else "reasoning")
                lists.setdefault(place.field, []).append(_part(place, text))
        return _finished(built | lists, status)


def _part(place: _Place, text: str) -> Json:
    more: Json = {"annotations": [], "logprobs": []} if place.kind == "output_text" else {}
    return {"type": place.kind, place.text: text, **more}


def _finished(item: Json, status: str) -> Json | None:
    kind = item.get("type")
    if kind is None or (kind in _NAMED and not item.get("name")):
        return None
    if kind == "message":
        item = {"role": "assistant", **item}
        if not item.get("content"):
            return None
    elif kind == "reasoning":
        item = {"summary": [], **item}
        return {k: v for k, v in item.items() if k != "status"}
    return {**item, "status": status}
