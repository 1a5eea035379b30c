"""Which summaries count, judged from records alone."""

from holdfast.core.compaction.records import RecordHead, in_force
from holdfast.core.ids import SessionId
from holdfast.core.model.records import RecordKind


def head(no: int, kind: RecordKind, first: int, last: int) -> RecordHead:
    return RecordHead(SessionId("s"), no, kind, first, last, None, 9)


def test_a_record_over_no_items_voids_no_summary() -> None:
    empty = head(2, "retry", 3, 2)
    force = in_force([head(1, "compaction", 1, 5), empty])
    assert force.compaction is not None
    assert force.hidden == ()


def test_a_record_over_one_item_of_a_summary_voids_it() -> None:
    for seq in (1, 5):
        force = in_force([head(1, "compaction", 1, 5), head(2, "hide", seq, seq)])
        assert force.compaction is None
    behind = in_force([head(1, "compaction", 1, 5), head(2, "hide", 6, 6)])
    assert behind.compaction is not None
