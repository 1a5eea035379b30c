"""Export formats, each built from a session and its log as the Sessions API returns them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from holdfast._version import __version__

ExportFormat = Literal["jsonl", "markdown", "openai"]
Value = dict[str, Any]

VERSION = 1


def export_header(**fields: Any) -> str:
    """Return the first line of a JSONL export."""
    head = {"object": "session.export", "version": VERSION, "holdfast": __version__, **fields}
    return _line(head)


def jsonl(lines: Iterable[Value]) -> Iterator[str]:
    """Yield a session, its turns, and every entry of its log."""
    yield from map(_line, lines)


def openai_items(entries: Iterable[Value]) -> str:
    """Return the visible items as the `input` of a request."""
    visible = [entry["item"] for entry in entries if entry["hidden_by"] is None]
    return json.dumps(visible, ensure_ascii=False, indent=2)


def markdown(session: Value, entries: Iterable[Value]) -> Iterator[str]:
    """Yield the visible conversation as Markdown."""
    yield f"# {_inline(session['key'] or session['id'])}"
    yield ""
    yield f"Session `{session['id']}`, generation {session['generation']}, {session['status']}."
    turn = None
    for entry in entries:
        if entry["hidden_by"] is not None:
            continue
        if entry["turn_number"] != turn:
            turn = entry["turn_number"]
            yield f"\n## Turn {turn}"
        yield ""
        yield from _item_markdown(entry["item"])


def _item_markdown(item: Value) -> Iterator[str]:
    kind = str(item.get("type") or "message")
    if kind == "message":
        yield f"**{item.get('role', 'unknown')}**"
        yield ""
        yield _text(item.get("content"))
    elif kind == "reasoning":
        yield "*reasoning*"
        summary = _text(item.get("summary"))
        if summary:
            yield f"\n{summary}"
    elif kind.endswith("_output"):
        yield f"*output of `{item.get('call_id')}`*"
        yield from _fenced(_text(item.get("output")))
    else:
        name = f" `{item['name']}`" if item.get("name") else ""
        yield f"*{kind}*{name}"
        yield from _fenced(str(item.get("arguments", item.get("input", ""))))


def _fenced(text: str) -> Iterator[str]:
    """Yield text in a fence that is longer than any fence inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    yield f"\n{fence}\n{text}\n{fence}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(_part(part) for part in parts)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _inline(text: str) -> str:
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("_", "\\_")


def _line(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
