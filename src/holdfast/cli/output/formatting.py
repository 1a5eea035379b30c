"""Sessions as people read them: lists, one session's story, and what was said."""

from collections.abc import Sequence
from typing import Any

from holdfast.cli.output.terminal import moment, one_line, printable, say, say_pairs, say_table

Value = dict[str, Any]
"""A JSON object of the gateway."""
TEXT_WIDTH = 2000


def say_sessions(sessions: Sequence[Value]) -> None:
    """Print a list of sessions."""
    rows = [
        (
            one["id"],
            one["key"],
            one["generation"],
            one["status"] + (f" +{one['queued_turns']}" if one["queued_turns"] else ""),
            one["item_count"],
            one["turn_count"],
            moment(one["last_user_activity_at"] or one["created_at"]),
        )
        for one in sessions
    ]
    columns = ("id", "key", "gen", "status", "items", "turns", "last activity")
    say_table(columns, rows, empty="no sessions", spare=("turns", "last activity", "gen"))


def say_session(session: Value) -> None:
    """Print one session's own facts."""
    say_pairs(
        [
            ("session", session["id"]),
            ("key", session["key"]),
            ("generation", session["generation"]),
            ("status", session["status"]),
            ("active turn", session["active_turn_id"]),
            ("queued turns", session["queued_turns"]),
            ("items", session["item_count"]),
            ("turns", session["turn_count"]),
            ("tokens", tokens(session["usage"])),
            ("created", moment(session["created_at"])),
            ("last activity", moment(session["last_user_activity_at"])),
            ("metadata", session["metadata"] or None),
        ]
    )


def say_story(session: Value, generations: Sequence[Value], turns: Sequence[Value]) -> None:
    """Print a session's story: itself, its key's generations, its turns and their runs."""
    say_session(session)
    if len(generations) > 1:
        say("\ngenerations of this key")
        say_sessions(generations)
    say("\nturns")
    say_table(
        ("turn", "id", "status", "began", "took", "tokens", "what happened"),
        [_turn_row(turn) for turn in turns],
        empty="none yet",
        spare=("began", "took", "tokens"),
    )


def _turn_row(turn: Value) -> tuple[Any, ...]:
    return (
        turn["number"],
        turn["id"],
        turn["status"],
        moment(_began(turn)),
        took(turn["duration_ms"]),
        tokens(turn["usage"]),
        "; ".join(_happenings(turn)) or None,
    )


def _began(turn: Value) -> int | None:
    """Return when a turn began; one that was taken over without its time may have at any."""
    began: int | None = turn["started_at"]
    return turn["accepted_at"] if began is None and turn["status"] != "completed" else began


def _happenings(turn: Value) -> list[str]:
    said = []
    if len(turn["runs"]) > 1:
        said.append(f"{len(turn['runs'])} runs")
    for run in turn["runs"]:
        if len(turn["runs"]) > 1:
            said.append(f"{run['status']} on {run['worker']}")
        for heal in run["heals"] or ():
            why = heal.get("code") or heal["failure_class"]
            said.append(f"healed: {heal['action']} ({why})")
        if run["late"] is not None:
            said.append("a late write was refused")
    if turn["error"] is not None:
        said.append(f"{turn['error']['code']}: {turn['error']['message'] or 'no message'}")
    return said


def say_items(entries: Sequence[Value], *, is_log: bool) -> None:
    """Print items; in the log's view, also what hides each."""
    if not entries:
        say("no items")
    for entry in entries:
        item = entry["item"] if is_log else entry
        mark = ""
        if is_log:
            hidden = entry["hidden_by"]
            mark = f"{entry['sequence']:>5} " + (f"[hidden: {hidden['kind']}] " if hidden else "")
        say(f"{mark}{who(item)}: {what(item)}")


def who(item: Value) -> str:
    """Return who an item is by."""
    return printable(str(item.get("role") or item.get("type") or "item"))


def what(item: Value, width: int = TEXT_WIDTH) -> str:
    """Return what an item says, on one line."""
    return printable(one_line(text_of(item), width))


def text_of(item: Value) -> str:
    """Return what an item says, as text."""
    kind = str(item.get("type") or "message")
    if kind.endswith("_output"):
        return _joined(item.get("output"))
    if kind == "reasoning":
        return _joined(item.get("summary")) or "(sealed)"
    if "arguments" in item:
        return f"{item.get('name', '')}({item['arguments']})"
    return _joined(item.get("content"))


def _joined(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return str(content)
    return "".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def tokens(usage: Value | None) -> str | None:
    """Return a count of tokens, in and out; unknown stays unknown."""
    if usage is None or usage["total_tokens"] is None:
        return None
    return f"{usage['input_tokens']} in, {usage['output_tokens']} out"


def took(milliseconds: int | None) -> str | None:
    """Return how long something took."""
    if milliseconds is None:
        return None
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"
