"""What the readers return: conversations, each a list of generations made of turns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.core.model.import_rows import ImportedTurn, Order
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.model.records import Span, merge_spans
from holdfast.core.model.session import Usage

Item = dict[str, Any]


class UnreadableSource(InvalidInput):
    """A file or database that cannot be imported."""

    code = "unreadable_source"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSession:
    """One generation; `source` is its stable name in the system it comes from."""

    source: str
    generation: int = 1
    turns: tuple[ImportedTurn, ...] = ()
    order: Order = ()
    hidden: tuple[Span, ...] = ()
    created_at: float = 0.0
    last_user_activity_at: float | None = None
    usage: Usage | None = None
    session_id: str | None = None
    """Its id, if it comes from another Holdfast."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What could not be read, for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    """The generations of a key, oldest first; the last one is live if `is_live`."""

    key: str | None
    generations: tuple[ImportedSession, ...]
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class UnreadSource:
    """One of several files or databases that could not be read and is not imported."""

    problem: str


@dataclass(slots=True)
class ItemGroup:
    """Consecutive items from one source entry; some groups start a turn."""

    items: list[NewItem]
    at: float | None = None
    ended_at: float | None = None
    begins_turn: bool = False
    is_by_user: bool = False
    is_hidden: bool = False


def group_turns(groups: Iterable[ItemGroup]) -> tuple[tuple[ImportedTurn, ...], tuple[Span, ...]]:
    """Return the groups as turns, and the hidden ranges of the log that the turns form."""
    turns: list[list[ItemGroup]] = []
    spans: list[Span] = []
    seq = 0
    for group in groups:
        if not group.items:
            continue
        if group.begins_turn or not turns:
            turns.append([])
        turns[-1].append(group)
        if group.is_hidden:
            spans.append((seq + 1, seq + len(group.items)))
        seq += len(group.items)
    return tuple(_turn(groups) for groups in turns), tuple(merge_spans(spans))


def _turn(groups: list[ItemGroup]) -> ImportedTurn:
    return ImportedTurn(
        items=tuple(item for group in groups for item in group.items),
        at=next((group.at for group in groups if group.at is not None), None),
        ended_at=next((group.ended_at for group in groups if group.ended_at is not None), None),
        is_by_user=any(group.is_by_user for group in groups),
    )


class Converter:
    """Converts foreign values to items and collects the problems of those it rejects."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def items(self, values: Iterable[Item]) -> list[NewItem]:
        """Return the valid values as items."""
        return list(self._items(values))

    def _items(self, values: Iterable[Item]) -> Iterator[NewItem]:
        for value in values:
            try:
                yield write_item(value)
            except InvalidItem as exc:
                self.problems.append(exc.message)


def split_by_role(items: Iterable[tuple[NewItem, Item, float | None]]) -> list[ItemGroup]:
    """Return one group per item; the first of consecutive user messages starts a turn."""
    groups: list[ItemGroup] = []
    was_by_user = False
    for item, value, at in items:
        is_by_user = value.get("role") == "user"
        begins = is_by_user and not was_by_user
        groups.append(ItemGroup([item], at, begins_turn=begins, is_by_user=is_by_user))
        was_by_user = is_by_user
    return groups


def seconds(value: Any) -> float | None:
    """Return a time given in milliseconds, seconds or ISO text, as seconds; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) / 1000 if value > 1e11 else float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
