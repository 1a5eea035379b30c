"""Hidden ranges against the plainest model there is: sets of numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import SessionId
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

spans = st.lists(st.tuples(st.integers(1, 30), st.integers(-2, 8)), max_size=8).map(
    lambda pairs: [(first, first + length) for first, length in pairs]
)


def numbers(found: list[Span]) -> set[int]:
    return {seq for first, last in found for seq in range(first, last + 1)}


@given(spans)
def test_merged_spans_cover_the_same_numbers_in_order_and_apart(given_spans: list[Span]) -> None:
    merged = merge_spans(given_spans)
    assert numbers(merged) == numbers(given_spans)
    for (_, before), (after, _) in pairwise(merged):
        assert before + 1 < after
    assert count_hidden(merged) == len(numbers(given_spans))


@given(spans, st.integers(1, 40), st.integers(0, 40))
def test_what_is_visible_is_what_is_not_hidden(
    given_spans: list[Span], first: int, last: int
) -> None:
    left = visible_spans(merge_spans(given_spans), first, last)
    assert numbers(left) == set(range(first, last + 1)) - numbers(given_spans)
    assert left == sorted(left)


kinds: st.SearchStrategy[RecordKind] = st.sampled_from([*sorted(HIDING), "compaction", "undo"])


@given(st.lists(st.tuples(kinds, st.integers(1, 20), st.integers(0, 5), st.integers(1, 8))))
def test_records_hide_what_no_other_record_undid(
    rows: list[tuple[RecordKind, int, int, int]],
) -> None:
    records = [
        Record(
            session_id=SessionId("s"),
            no=no,
            kind=kind,
            from_seq=first,
            to_seq=first + length,
            turn_id=None,
            undoes=undoes if kind == "undo" else None,
            body=None,
            created_at=0.0,
        )
        for no, (kind, first, length, undoes) in enumerate(rows, 1)
    ]
    undone = {record.undoes for record in records if record.kind == "undo"}
    hiding = [record for record in records if record.kind in HIDING and record.no not in undone]
    expected = numbers([(record.from_seq, record.to_seq) for record in hiding])
    assert numbers(hidden_spans(records)) == expected
