"""OpenClaw's transcripts: one tree of events in files and in its database alike.

The active branch is what the parents of the last event lead back through. Everything else is kept,
hidden. A compaction hides what it sums up; a reset begins the next generation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.core.model.import_rows import PastTurn
from holdfast.core.model.records import Span
from holdfast.transfer.conversation import Block, Converter, Item, gather, seconds
from holdfast.transfer.openclaw_messages import message_items, summary_items, user_items

WITHOUT_CONTENT = frozenset(
    {
        "session", "model_change", "thinking_level_change", "custom", "leaf", "link", "label",
        "session_info",
    }
)  # fmt: skip


@dataclass(slots=True)
class Segment:
    """What was said between two resets."""

    blocks: list[Block] = field(default_factory=list)
    began_at: float | None = None

    def gathered(self) -> tuple[tuple[PastTurn, ...], tuple[Span, ...]]:
        """Return the segment as turns and what of them is hidden."""
        return gather(self.blocks)


@dataclass(slots=True)
class Transcript:
    """A whole file or session: its segments, the oldest first, and what was wrong with it."""

    segments: list[Segment]
    began_at: float | None
    problems: list[str]


def read_transcript(events: Sequence[Item]) -> Transcript:
    """Return a transcript as segments of blocks."""
    reading = _Reading(events)
    for event in events:
        reading.take(event)
    began = next((seconds(one.get("timestamp")) for one in events if one.get("timestamp")), None)
    return Transcript(reading.segments, began, reading.converter.problems)


class _Reading:
    def __init__(self, events: Sequence[Item]) -> None:
        self.converter = Converter()
        self.segments = [Segment()]
        self._active = _active_branch(events)
        self._kept: list[tuple[str, Block]] = []
        """Blocks of the active branch since the last reset, by the id of their event."""

    def take(self, event: Item) -> None:
        kind, name = event.get("type"), str(event.get("id", ""))
        if kind in WITHOUT_CONTENT:
            return
        is_active = self._active is None or name in self._active
        if is_active and kind == "compaction":
            self._compact(event)
        elif is_active and kind == "reset":
            self._reset(event)
        elif kind not in ("compaction", "reset"):
            self._add(event, name, is_active=is_active)

    def _add(self, event: Item, name: str, *, is_active: bool) -> None:
        block = self._block(event)
        block.is_hidden = not is_active
        self.segments[-1].blocks.append(block)
        if is_active:
            self._kept.append((name, block))

    def _block(self, event: Item) -> Block:
        at = seconds(event.get("timestamp"))
        match event.get("type"):
            case "message":
                message = event.get("message")
                items = self.converter.items(message_items(message))
                role = message.get("role") if isinstance(message, dict) else None
                is_by_user = role not in ("assistant", "toolResult")
                return Block(items, at, begins_turn=is_by_user, is_by_user=role == "user")
            case "custom_message":
                items = self.converter.items(user_items(event.get("content")))
                return Block(items, at, begins_turn=True)
            case "branch_summary":
                return Block(self.converter.items(summary_items(event)), at, begins_turn=True)
            case kind:
                self.converter.problems.append(f"an event of the unknown type {kind!r}")
                return Block([])

    def _compact(self, event: Item) -> None:
        """Hide what came before, and say the summary and what was kept behind it."""
        kept = self._from(event.get("firstKeptEntryId"))
        for block in self.segments[-1].blocks:
            block.is_hidden = True
        at = seconds(event.get("timestamp"))
        summary = Block(self.converter.items(summary_items(event)), at, begins_turn=True)
        self._begin_with([("", summary), *kept])

    def _reset(self, event: Item) -> None:
        kept = self._from(event.get("firstKeptEntryId"))
        self.segments.append(Segment(began_at=seconds(event.get("timestamp"))))
        self._begin_with(kept)

    def _from(self, first: object) -> list[tuple[str, Block]]:
        names = [name for name, _ in self._kept]
        if not isinstance(first, str) or first not in names:
            return []
        return self._kept[names.index(first) :]

    def _begin_with(self, kept: Iterable[tuple[str, Block]]) -> None:
        again = [
            (name, Block(b.items, b.at, begins_turn=b.begins_turn, is_by_user=b.is_by_user))
            for name, b in kept
        ]
        self.segments[-1].blocks.extend(block for _, block in again)
        self._kept = again


def _active_branch(events: Sequence[Item]) -> set[str] | None:
    """Return the ids on the way from the last event to the first; `None` where there is no tree."""
    parents = {
        str(event["id"]): event.get("parentId")
        for event in events
        if event.get("id") and event.get("type") != "session"
    }
    if not any(parents.values()):
        return None
    here = _leaf(events)
    active: set[str] = set()
    while here is not None and here not in active:
        if here not in parents:
            # The way back is lost here: what came before, in the order of the file, is kept.
            return active | _before(events, active)
        active.add(here)
        parent = parents[here]
        here = str(parent) if parent else None
    return active


def _leaf(events: Sequence[Item]) -> str | None:
    for event in reversed(events):
        if event.get("type") == "leaf":
            for name in ("targetId", "leafId", "entryId"):
                if event.get(name):
                    return str(event[name])
        if event.get("id") and event.get("type") not in ("session", "link", "label"):
            return str(event["id"])
    return None


def _before(events: Sequence[Item], active: set[str]) -> set[str]:
    names: set[str] = set()
    for event in events:
        name = str(event.get("id", ""))
        if name in active:
            break
        names.add(name)
    return names
