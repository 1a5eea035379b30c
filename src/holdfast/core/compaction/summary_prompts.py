"""Words of a compaction: what a model is told to sum up, and what is said where none does."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.compaction.budget import SUMMARY_TURN, Plan, role_of
from holdfast.core.compaction.records import SUMMARY_OPENING
from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, item_value

DEFAULT_PROMPT = (
    "You are given the earlier part of a conversation between a user and an assistant that may "
    "have called tools. Write a summary from which the assistant can go on as if it had read all "
    "of it. Keep: what the user asked for and every instruction still in force; decisions and "
    "their reasons; names, paths, ids, numbers and exact wording that may be needed again; what "
    "was done by tools and with what result; what is still open. Leave out greetings and "
    "repetition. Write plain text, no preamble, and answer nothing that is asked in it."
)
_CLIPPED = "\n[…]\n"
_QUOTE = "The conversation began with this request:\n"
_UNQUOTE = "\n[end of that request]\n\n"
_NOTE = re.compile(r"\[(\d+) messages and (\d+) tool calls are left out here to save room\.\]$")


def clip(text: str, size: int) -> str:
    """Return a text of at most about so many bytes: its beginning and its end."""
    raw = text.encode()
    if len(raw) <= size:
        return text
    room = max(size - len(_CLIPPED.encode()), 0)
    head, tail = room - room // 3, room // 3
    first = raw[:head].decode("utf-8", "ignore")
    last = raw[len(raw) - tail :].decode("utf-8", "ignore") if tail else ""
    return first + _CLIPPED + last


def transcript(items: Sequence[StoredItem], size: int) -> str:
    """Return items as a text of at most about so many bytes, for somebody to sum up."""
    lines = [line for line in map(_line, items) if line]
    whole = sum(len(line.encode()) + 1 for line in lines)
    if whole > size:
        # Long ones are clipped first: what was said matters more than what a tool printed.
        fair = max(2 * size // max(len(lines), 1), 200)
        lines = [clip(line, fair) for line in lines]
    return clip("\n".join(lines), size)


def _line(item: StoredItem) -> str:
    value = item_value(item.body)
    if item.kind == "message":
        said = content_text(value.get("content"))
        if item.turn_number == SUMMARY_TURN:
            return f"earlier summary: {said.removeprefix(SUMMARY_OPENING)}"
        return f"{value.get('role')}: {said}"
    if item.kind.endswith(OUTPUT_SUFFIX):
        return f"tool result: {content_text(value.get('output'))}"
    if item.kind == "reasoning":
        return ""
    if item.call_id is not None:
        told = value.get("arguments", value.get("input", value.get("action", "")))
        name = value.get("name") or item.kind
        return f"assistant calls {name}: {content_text(told)}"
    return f"{item.kind}: {clip(content_text(value), 500)}"


def content_text(content: Any) -> str:
    """Return what a content, an output or an argument says, without pictures."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    return msgspec.json.encode(content).decode()


def _part(part: Any) -> str:
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"
    return str(part)


def standing_instructions(items: Sequence[StoredItem]) -> str:
    """Return what systems and developers said among items: it holds on, whoever sums them up."""
    told = [
        content_text(item_value(item.body).get("content"))
        for item in items
        if role_of(item) in ("system", "developer")
    ]
    return "Standing instructions:\n" + "\n".join(told) if told else ""


def standalone_summary(items: Sequence[StoredItem], keeps: Sequence[int], text: str) -> str:
    """Return a summary that needs nothing beside it: with what is shown as it is in the log."""
    kept = [item for item in items if item.seq in set(keeps) and item.turn_number != SUMMARY_TURN]
    asked = [item for item in kept if role_of(item) == "user"]
    parts = [standing_instructions(kept)]
    if asked:
        parts.append(_QUOTE + content_text(item_value(asked[0].body).get("content")))
    return "\n\n".join(part for part in (*parts, text) if part)


def with_first_request(plan: Plan, text: str, size: int) -> str:
    """Return a summary that begins with the first request, where that is not shown itself."""
    asked = _told_before(plan)[0]
    if asked is None and plan.first is not None:
        asked = clip(content_text(item_value(plan.first.body).get("content")), size)
    return text if asked is None else f"{_QUOTE}{asked}{_UNQUOTE}{text}"


def elision_note(plan: Plan, size: int) -> str:
    """Return what is said of a range where no model sums it up: what was told, how much is gone."""
    said, calls = 0, 0
    for item in plan.replaced:
        if item.kind == "message":
            said += item.turn_number != SUMMARY_TURN
        elif item.call_id is not None and not item.kind.endswith(OUTPUT_SUFFIX):
            calls += 1
    earlier = _told_before(plan)[1]
    found = _NOTE.search(earlier)
    if found is not None:
        said, calls = said + int(found[1]), calls + int(found[2])
        earlier = earlier[: found.start()].rstrip()
    note = f"[{said} messages and {calls} tool calls are left out here to save room.]"
    return f"{clip(earlier, size)}\n{note}" if earlier else note


def _told_before(plan: Plan) -> tuple[str | None, str]:
    """Return what an earlier summary quotes of the first request, and the rest of it."""
    for item in plan.replaced:
        if item.turn_number == SUMMARY_TURN:
            text = content_text(item_value(item.body).get("content"))
            text = text.removeprefix(SUMMARY_OPENING)
            if text.startswith(_QUOTE) and _UNQUOTE in text:
                asked, _, rest = text.removeprefix(_QUOTE).partition(_UNQUOTE)
                return asked, rest
            return None, text
    return None, ""
