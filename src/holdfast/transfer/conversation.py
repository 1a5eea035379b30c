"""What a reader finds: lives of conversations, each a line of generations made of past turns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.core.model.import_rows import Order, PastTurn
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.model.records import Span, merge_spans
from holdfast.core.model.session import Usage

Item = dict[str, Any]


class UnreadableSource(InvalidInput):
    """A file or database is none that can be imported."""

    code = "unreadable_source"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSession:
    """One generation: `source` is the name it always has where it comes from."""

    source: str
    generation: int = 1
    turns: tuple[PastTurn, ...] = ()
    order: Order = ()
    hidden: tuple[Span, ...] = ()
    created_at: float = 0.0
    last_user_activity_at: float | None = None
    usage: Usage | None = None
    session_id: str | None = None
    """Its id, where it comes from another Holdfast."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """What could not be read, for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLife:
    """What a key has been, the oldest generation first; the last one is live where `is_live`."""

    key: str | None
    generations: tuple[PastSession, ...]
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class Unread:
    """A file or database among others that could not be read; what it holds is not taken over."""

    problem: str


@dataclass(slots=True)
class Block:
    """Items that came together; one that begins a turn was said by somebody."""

    items: list[NewItem]
    at: float | None = None
    ended_at: float | None = None
    begins_turn: bool = False
    is_by_user: bool = False
    is_hidden: bool = False


def gather(blocks: Iterable[Block]) -> tuple[tuple[PastTurn, ...], tuple[Span, ...]]:
    """Return blocks as turns, and the ranges of hidden ones in the log that the turns make."""
    turns: list[list[Block]] = []
    spans: list[Span] = []
    seq = 0
    for block in blocks:
        if not block.items:
            continue
        if block.begins_turn or not turns:
            turns.append([])
        turns[-1].append(block)
        if block.is_hidden:
            spans.append((seq + 1, seq + len(block.items)))
        seq += len(block.items)
    return tuple(_turn(parts) for parts in turns), tuple(merge_spans(spans))


def _turn(parts: list[Block]) -> PastTurn:
    return PastTurn(
        items=tuple(item for part in parts for item in part.items),
        at=next((part.at for part in parts if part.at is not None), None),
        ended_at=next((part.ended_at for part in parts if part.ended_at is not None), None),
        is_by_user=any(part.is_by_user for part in parts),
    )


class Converter:
    """Turns foreign values into items, and counts those that cannot be."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def items(self, values: Iterable[Item]) -> list[NewItem]:
        """Return the values that are items."""
        return list(self._items(values))

    def _items(self, values: Iterable[Item]) -> Iterator[NewItem]:
        for value in values:
            try:
                yield write_item(value)
            except InvalidItem as exc:
                self.problems.append(exc.message)


def by_role(items: Iterable[tuple[NewItem, Item, float | None]]) -> list[Block]:
    """Return items as blocks in which each run of a user's messages begins a turn."""
    blocks: list[Block] = []
    was_by_user = False
    for item, value, at in items:
        is_by_user = value.get("role") == "user"
        begins = is_by_user and not was_by_user
        blocks.append(Block([item], at, begins_turn=begins, is_by_user=is_by_user))
        was_by_user = is_by_user
    return blocks


def seconds(value: Any) -> float | None:
    """Return a time written as milliseconds, seconds or text, if it is one."""
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
