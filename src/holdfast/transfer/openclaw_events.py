"""Reader of OpenClaw's transcripts: the same tree of events in files and in its database.

The active branch is the chain of parents from the last event. Events outside it are imported
hidden. A compaction hides what it summarizes; a reset starts the next generation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.core.model.import_rows import ImportedTurn
from holdfast.core.model.records import Span
from holdfast.transfer.imported_conversation import Converter, Item, ItemGroup, group_turns, seconds
from holdfast.transfer.openclaw_messages import message_items, summary_items, user_items

NO_CONTENT_TYPES = frozenset(
    {
        "session", "model_change", "thinking_level_change", "custom", "leaf", "link", "label",
        "session_info",
    }
)  # fmt: skip


@dataclass(slots=True)
class Segment:
    """The events between two resets."""

    groups: list[ItemGroup] = field(default_factory=list)
    started_at: float | None = None

    def to_turns(self) -> tuple[tuple[ImportedTurn, ...], tuple[Span, ...]]:
        """Return the segment as turns, and its hidden ranges."""
        return group_turns(self.groups)


@dataclass(slots=True)
class OpenClawTranscript:
    """A whole file or session: its segments, oldest first, and its problems."""

    segments: list[Segment]
    started_at: float | None
    problems: list[str]


def read_transcript(events: Sequence[Item]) -> OpenClawTranscript:
    """Convert events to a transcript."""
    builder = _TranscriptBuilder(events)
    for event in events:
        builder.add(event)
    timestamps = (event.get("timestamp") for event in events)
    started_at = next((seconds(timestamp) for timestamp in timestamps if timestamp), None)
    return OpenClawTranscript(builder.segments, started_at, builder.converter.problems)


class _TranscriptBuilder:
    def __init__(self, events: Sequence[Item]) -> None:
        self.converter = Converter()
        self.segments = [Segment()]
        self._active = _active_branch(events)
        self._visible: list[tuple[str, ItemGroup]] = []
        """Groups of the active branch since the last reset, with the ids of their events."""

    def add(self, event: Item) -> None:
        kind, event_id = event.get("type"), str(event.get("id", ""))
        if kind in NO_CONTENT_TYPES:
            return
        is_active = self._active is None or event_id in self._active
        if is_active and kind == "compaction":
            self._compact(event)
        elif is_active and kind == "reset":
            self._reset(event)
        elif kind not in ("compaction", "reset"):
            self._append(event, event_id, is_active=is_active)

    def _append(self, event: Item, event_id: str, *, is_active: bool) -> None:
        group = self._group(event)
        group.is_hidden = not is_active
        self.segments[-1].groups.append(group)
        if is_active:
            self._visible.append((event_id, group))

    def _group(self, event: Item) -> ItemGroup:
        at = seconds(event.get("timestamp"))
        match event.get("type"):
            case "message":
                message = event.get("message")
                items = self.converter.items(message_items(message))
                role = message.get("role") if isinstance(message, dict) else None
                is_by_user = role not in ("assistant", "toolResult")
                return ItemGroup(items, at, begins_turn=is_by_user, is_by_user=role == "user")
            case "custom_message":
                items = self.converter.items(user_items(event.get("content")))
                return ItemGroup(items, at, begins_turn=True)
            case "branch_summary":
                return ItemGroup(self.converter.items(summary_items(event)), at, begins_turn=True)
            case kind:
                self.converter.problems.append(f"unknown event type {kind!r}")
                return ItemGroup([])

    def _compact(self, event: Item) -> None:
        """Hide everything before, then add the summary and the entries that it keeps."""
        retained = self._visible_from(event.get("firstKeptEntryId"))
        for group in self.segments[-1].groups:
            group.is_hidden = True
        at = seconds(event.get("timestamp"))
        summary = ItemGroup(self.converter.items(summary_items(event)), at, begins_turn=True)
        self._restart_with([("", summary), *retained])

    def _reset(self, event: Item) -> None:
        retained = self._visible_from(event.get("firstKeptEntryId"))
        self.segments.append(Segment(started_at=seconds(event.get("timestamp"))))
        self._restart_with(retained)

    def _visible_from(self, first: object) -> list[tuple[str, ItemGroup]]:
        event_ids = [event_id for event_id, _ in self._visible]
        if not isinstance(first, str) or first not in event_ids:
            return []
        return self._visible[event_ids.index(first) :]

    def _restart_with(self, groups: Iterable[tuple[str, ItemGroup]]) -> None:
        copies = [
            (event_id, ItemGroup(g.items, g.at, begins_turn=g.begins_turn, is_by_user=g.is_by_user))
            for event_id, g in groups
        ]
        self.segments[-1].groups.extend(group for _, group in copies)
        self._visible = copies


def _active_branch(events: Sequence[Item]) -> set[str] | None:
    """Return the ids on the path from the last event to the root; None if there is no tree."""
    parents = {
        str(event["id"]): event.get("parentId")
        for event in events
        if event.get("id") and event.get("type") != "session"
    }
    if not any(parents.values()):
        return None
    current = _leaf(events)
    active: set[str] = set()
    while current is not None and current not in active:
        if current not in parents:
            # The chain is broken here: treat all earlier events of the file as active.
            return active | _before(events, active)
        active.add(current)
        parent = parents[current]
        current = str(parent) if parent else None
    return active


def _leaf(events: Sequence[Item]) -> str | None:
    for event in reversed(events):
        if event.get("type") == "leaf":
            for field_name in ("targetId", "leafId", "entryId"):
                if event.get(field_name):
                    return str(event[field_name])
        if event.get("id") and event.get("type") not in ("session", "link", "label"):
            return str(event["id"])
    return None


def _before(events: Sequence[Item], active: set[str]) -> set[str]:
    event_ids: set[str] = set()
    for event in events:
        event_id = str(event.get("id", ""))
        if event_id in active:
            break
        event_ids.add(event_id)
    return event_ids
