"""Texts of a compaction: the transcript to summarize, and the summary by rule without a model."""

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
    """Return a text clipped to about `size` bytes: its beginning and its end."""
    raw = text.encode()
    if len(raw) <= size:
        return text
    room = max(size - len(_CLIPPED.encode()), 0)
    head, tail = room - room // 3, room // 3
    first = raw[:head].decode("utf-8", "ignore")
    last = raw[len(raw) - tail :].decode("utf-8", "ignore") if tail else ""
    return first + _CLIPPED + last


def transcript(items: Sequence[StoredItem], size: int) -> str:
    """Return items as a text of about `size` bytes at most, for a model to summarize."""
    lines = [line for line in map(_line, items) if line]
    total_bytes = sum(len(line.encode()) + 1 for line in lines)
    if total_bytes > size:
        # Long lines are clipped first: messages matter more than what a tool printed.
        fair = max(2 * size // max(len(lines), 1), 200)
        lines = [clip(line, fair) for line in lines]
    return clip("\n".join(lines), size)


def _line(item: StoredItem) -> str:
    value = item_value(item.body)
    if item.kind == "message":
        text = content_text(value.get("content"))
        if item.turn_number == SUMMARY_TURN:
            return f"earlier summary: {text.removeprefix(SUMMARY_OPENING)}"
        return f"{value.get('role')}: {text}"
    if item.kind.endswith(OUTPUT_SUFFIX):
        return f"tool result: {content_text(value.get('output'))}"
    if item.kind == "reasoning":
        return ""
    if item.call_id is not None:
        arguments = value.get("arguments", value.get("input", value.get("action", "")))
        name = value.get("name") or item.kind
        return f"assistant calls {name}: {content_text(arguments)}"
    return f"{item.kind}: {clip(content_text(value), 500)}"


def content_text(content: Any) -> str:
    """Return the text of a content, an output or arguments, without images."""
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
    """Return the system and developer messages among items; they stay in force."""
    texts = [
        content_text(item_value(item.body).get("content"))
        for item in items
        if role_of(item) in ("system", "developer")
    ]
    return "Standing instructions:\n" + "\n".join(texts) if texts else ""


def standalone_summary(items: Sequence[StoredItem], keeps: Sequence[int], text: str) -> str:
    """Return a summary together with the kept items, for a client that has nothing else."""
    kept = [item for item in items if item.seq in set(keeps) and item.turn_number != SUMMARY_TURN]
    requests = [item for item in kept if role_of(item) == "user"]
    parts = [standing_instructions(kept)]
    if requests:
        parts.append(_QUOTE + content_text(item_value(requests[0].body).get("content")))
    return "\n\n".join(part for part in (*parts, text) if part)


def with_first_request(plan: Plan, text: str, size: int) -> str:
    """Return a summary that quotes the first request, for when that request is not sent itself."""
    request = _earlier_summary(plan)[0]
    if request is None and plan.first is not None:
        request = clip(content_text(item_value(plan.first.body).get("content")), size)
    return text if request is None else f"{_QUOTE}{request}{_UNQUOTE}{text}"


def elision_note(plan: Plan, size: int) -> str:
    """Return a summary made by rule: the earlier summary, and how much is left out."""
    messages, calls = 0, 0
    for item in plan.replaced:
        if item.kind == "message":
            messages += item.turn_number != SUMMARY_TURN
        elif item.call_id is not None and not item.kind.endswith(OUTPUT_SUFFIX):
            calls += 1
    earlier = _earlier_summary(plan)[1]
    match = _NOTE.search(earlier)
    if match is not None:
        messages, calls = messages + int(match[1]), calls + int(match[2])
        earlier = earlier[: match.start()].rstrip()
    note = f"[{messages} messages and {calls} tool calls are left out here to save room.]"
    return f"{clip(earlier, size)}\n{note}" if earlier else note


def _earlier_summary(plan: Plan) -> tuple[str | None, str]:
    """Return the first request that an earlier summary quotes, and the rest of that summary."""
    for item in plan.replaced:
        if item.turn_number == SUMMARY_TURN:
            text = content_text(item_value(item.body).get("content"))
            text = text.removeprefix(SUMMARY_OPENING)
            if text.startswith(_QUOTE) and _UNQUOTE in text:
                request, _, rest = text.removeprefix(_QUOTE).partition(_UNQUOTE)
                return request, rest
            return None, text
    return None, ""
