"""Records over a log: they hide items without changing them; the rest is the visible view.

The log only grows. An edit, a regenerate, a rollback or a second attempt hides a range of it;
everything hidden stays readable in the log's own view.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.core.ids import SessionId, TurnId

RecordKind = Literal[
    "rewind",
    "rollback",
    "retry",
    "hide",
    "pop",
    "move",
    "replace",
    "refused",
    "instructions",
    "compaction",
    "elision",
    "quarantine",
    "undo",
]
HIDING: frozenset[RecordKind] = frozenset(
    {"rewind", "rollback", "retry", "hide", "pop", "move", "replace", "refused"}
)
REFUSED: frozenset[RecordKind] = frozenset({"refused"})
"""Records that hide input that a provider refused; a client's history may still contain it."""

Span = tuple[int, int]
"""First and last sequence number, both included."""


class Record(msgspec.Struct, frozen=True):
    """The row of a record; it applies to the items `from_seq` to `to_seq`."""

    session_id: SessionId
    no: int
    kind: RecordKind
    from_seq: int
    to_seq: int
    turn_id: TurnId | None
    undoes: int | None
    body: bytes | None
    created_at: float


class HiddenRanges(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The merged ranges that a log's records hide; refused input is listed separately."""

    hidden: tuple[Span, ...] = ()
    refused: tuple[Span, ...] = ()
    instructions: Span | None = None
    """The items that give the session's instructions."""

    def after(self, records: Iterable[Record]) -> "HiddenRanges":
        """Return the ranges after these records are added; no hiding record is ever undone."""
        hidden, refused = list(self.hidden), list(self.refused)
        instructions = self.instructions
        for record in records:
            if record.kind == "instructions":
                instructions = (record.from_seq, record.to_seq)
            elif record.kind in HIDING:
                spans = refused if record.kind in REFUSED else hidden
                spans.append((record.from_seq, record.to_seq))
        merged = tuple(merge_spans(hidden)), tuple(merge_spans(refused))
        return HiddenRanges(*merged, instructions)

    def upto(self, last: int) -> "HiddenRanges | None":
        """Return the ranges of the log up to an item, or None if older records are needed."""
        if self.instructions is not None and self.instructions[1] > last:
            return None
        return HiddenRanges(
            tuple((first, min(end, last)) for first, end in self.hidden if first <= last),
            tuple((first, min(end, last)) for first, end in self.refused if first <= last),
            self.instructions,
        )

    def all(self) -> tuple[Span, ...]:
        """Return all ranges, merged."""
        if not self.refused:
            return self.hidden
        return tuple(merge_spans([*self.hidden, *self.refused]))


NOTHING_HIDDEN = HiddenRanges()


def hidden_spans(records: Iterable[Record], kinds: Collection[RecordKind] = HIDING) -> list[Span]:
    """Return the ranges that one session's records of some kinds hide, merged and in order."""
    return merge_spans(
        (record.from_seq, record.to_seq) for record in in_force(records) if record.kind in kinds
    )


def in_force(records: Iterable[Record]) -> list[Record]:
    """Return one session's records without the undone ones and without the undo records."""
    listed = list(records)
    undone = {record.undoes for record in listed if record.kind == "undo"}
    return [record for record in listed if record.kind != "undo" and record.no not in undone]


def quarantined(records: Iterable[Record]) -> frozenset[int]:
    """Return the sequence numbers of items that a provider could not process."""
    return frozenset(
        seq
        for record in records
        if record.kind == "quarantine"
        for seq in range(record.from_seq, record.to_seq + 1)
    )


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the ranges in order, without empty ones; adjacent ranges are joined."""
    merged: list[Span] = []
    for first, last in sorted(span for span in spans if span[0] <= span[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def count_hidden(spans: Sequence[Span]) -> int:
    """Return how many items the (merged) spans cover."""
    return sum(last - first + 1 for first, last in spans)


def visible_spans(spans: Sequence[Span], first: int, last: int) -> list[Span]:
    """Return the parts of `first`..`last` that the (merged) hidden spans do not cover."""
    left: list[Span] = []
    start = first
    for hidden_first, hidden_last in spans:
        if hidden_last < start:
            continue
        if hidden_first > last:
            break
        if hidden_first > start:
            left.append((start, hidden_first - 1))
        start = hidden_last + 1
    if start <= last:
        left.append((start, last))
    return left
