"""Formatting of sessions, turns and items for people."""

from collections.abc import Sequence
from typing import Any

from holdfast.cli.output.terminal import (
    format_time,
    print_line,
    print_pairs,
    print_table,
    printable,
    truncate_line,
)

Value = dict[str, Any]
"""A JSON object from the gateway."""
TEXT_WIDTH = 2000


def last_activity(session: Value) -> float:
    """Return when a user last wrote to a session, or when it was created."""
    return float(session["last_user_activity_at"] or session["created_at"])


def print_sessions(sessions: Sequence[Value]) -> None:
    """Print a list of sessions."""
    rows = [
        (
            session["id"],
            session["key"],
            session["generation"],
            session["status"] + (f" +{session['queued_turns']}" if session["queued_turns"] else ""),
            session["item_count"],
            session["turn_count"],
            format_time(last_activity(session)),
        )
        for session in sessions
    ]
    columns = ("id", "key", "gen", "status", "items", "turns", "last activity")
    print_table(columns, rows, empty="no sessions", optional=("turns", "last activity", "gen"))


def print_session(session: Value) -> None:
    """Print the fields of one session."""
    print_pairs(
        [
            ("session", session["id"]),
            ("key", session["key"]),
            ("generation", session["generation"]),
            ("status", session["status"]),
            ("active turn", session["active_turn_id"]),
            ("queued turns", session["queued_turns"]),
            ("items", session["item_count"]),
            ("turns", session["turn_count"]),
            ("tokens", format_tokens(session["usage"])),
            ("created", format_time(session["created_at"])),
            ("last activity", format_time(session["last_user_activity_at"])),
            ("metadata", session["metadata"] or None),
        ]
    )


def print_session_details(
    session: Value, generations: Sequence[Value], turns: Sequence[Value]
) -> None:
    """Print a session, the generations of its key, and its turns with their runs."""
    print_session(session)
    if len(generations) > 1:
        print_line("\ngenerations of this key")
        print_sessions(generations)
    print_line("\nturns")
    print_table(
        ("turn", "id", "status", "started", "duration", "tokens", "details"),
        [_turn_row(turn) for turn in turns],
        empty="none",
        optional=("started", "duration", "tokens"),
    )


def _turn_row(turn: Value) -> tuple[Any, ...]:
    return (
        turn["number"],
        turn["id"],
        turn["status"],
        format_time(_started_at(turn)),
        format_duration(turn["duration_ms"]),
        format_tokens(turn["usage"]),
        "; ".join(_turn_details(turn)) or None,
    )


def _started_at(turn: Value) -> int | None:
    """Return when a turn started; unknown for a completed turn imported without its time."""
    started: int | None = turn["started_at"]
    return turn["accepted_at"] if started is None and turn["status"] != "completed" else started


def _turn_details(turn: Value) -> list[str]:
    details = []
    if len(turn["runs"]) > 1:
        details.append(f"{len(turn['runs'])} runs")
    for run in turn["runs"]:
        if len(turn["runs"]) > 1:
            details.append(f"{run['status']} on {run['worker']}")
        for heal in run["heals"] or ():
            reason = heal.get("code") or heal["failure_class"]
            details.append(f"healed: {heal['action']} ({reason})")
        if run["late"] is not None:
            details.append("a late write was rejected")
    if turn["error"] is not None:
        error = turn["error"]
        details.append(": ".join(filter(None, (error["code"], error["message"]))))
    return details


def print_items(entries: Sequence[Value], *, is_log: bool) -> None:
    """Print items; in the log view, also the record that hides each."""
    if not entries:
        print_line("no items")
    for entry in entries:
        item = entry["item"] if is_log else entry
        prefix = ""
        if is_log:
            hidden = entry["hidden_by"]
            prefix = f"{entry['sequence']:>5} " + (f"[hidden: {hidden['kind']}] " if hidden else "")
        print_line(f"{prefix}{author_of(item)}: {summary_line(item)}")


def author_of(item: Value) -> str:
    """Return the role of a message, or the type of another item."""
    return printable(str(item.get("role") or item.get("type") or "item"))


def summary_line(item: Value, width: int = TEXT_WIDTH) -> str:
    """Return an item's text on one line."""
    return printable(truncate_line(text_of(item), width))


def text_of(item: Value) -> str:
    """Return an item's content as text."""
    kind = str(item.get("type") or "message")
    if kind.endswith("_output"):
        return _join_parts(item.get("output"))
    if kind == "reasoning":
        return _join_parts(item.get("summary")) or "(encrypted)"
    if "arguments" in item:
        return f"{item.get('name', '')}({item['arguments']})"
    return _join_parts(item.get("content"))


def _join_parts(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return str(content)
    return "".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def format_tokens(usage: Value | None) -> str | None:
    """Return token counts, in and out; None if unknown."""
    if usage is None or usage["total_tokens"] is None:
        return None
    return f"{usage['input_tokens']} in, {usage['output_tokens']} out"


def format_duration(milliseconds: int | None) -> str | None:
    """Return a duration in milliseconds or seconds."""
    if milliseconds is None:
        return None
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"
