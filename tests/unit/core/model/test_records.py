"""Records over a log: what they hide, and the view that is left."""

from typing import Any

import pytest

from holdfast.core.model.records import (
    HIDING,
    Record,
    RecordKind,
    Span,
    count_hidden,
    hidden_spans,
    merge_spans,
    visible_spans,
)
from tests.unit.core.builders import NOW, SESSION


def a_record(no: int, kind: RecordKind, span: Span = (1, 1), **fields: Any) -> Record:
    return Record(SESSION, no, kind, *span, None, fields.get("undoes"), None, NOW)


@pytest.mark.parametrize("kind", sorted(HIDING))
def test_every_hiding_kind_hides_its_range(kind: RecordKind) -> None:
    assert hidden_spans([a_record(1, kind, (2, 3))]) == [(2, 3)]


def test_a_compaction_hides_nothing() -> None:
    assert hidden_spans([a_record(1, "compaction", (1, 9))]) == []


def test_an_undone_record_hides_nothing_any_more() -> None:
    records = [a_record(1, "hide", (1, 2)), a_record(2, "hide", (4, 5))]
    assert hidden_spans([*records, a_record(3, "undo", undoes=1)]) == [(4, 5)]


@pytest.mark.parametrize(
    ("spans", "merged"),
    [
        ([], []),
        ([(3, 4), (1, 2)], [(1, 4)]),
        ([(1, 5), (2, 3)], [(1, 5)]),
        ([(1, 2), (4, 5)], [(1, 2), (4, 5)]),
        ([(5, 4)], []),
        ([(1, 3), (3, 6), (8, 8)], [(1, 6), (8, 8)]),
    ],
)
def test_ranges_are_joined_where_they_touch_and_empty_ones_dropped(
    spans: list[Span], merged: list[Span]
) -> None:
    assert merge_spans(spans) == merged


@pytest.mark.parametrize(
    ("hidden", "first", "last", "left"),
    [
        ([], 1, 3, [(1, 3)]),
        ([(1, 3)], 1, 3, []),
        ([(2, 2)], 1, 3, [(1, 1), (3, 3)]),
        ([(1, 1), (3, 9)], 1, 5, [(2, 2)]),
        ([(1, 2)], 3, 4, [(3, 4)]),
        ([(7, 8)], 1, 4, [(1, 4)]),
        ([], 4, 3, []),
    ],
)
def test_the_view_is_what_the_hidden_ranges_leave(
    hidden: list[Span], first: int, last: int, left: list[Span]
) -> None:
    assert visible_spans(hidden, first, last) == left
    shown = {seq for start, end in left for seq in range(start, end + 1)}
    covered = {seq for start, end in hidden for seq in range(start, end + 1)}
    assert shown == set(range(first, last + 1)) - covered


def test_hidden_items_are_counted_once() -> None:
    assert count_hidden(merge_spans([(1, 3), (2, 5), (9, 9)])) == 6
