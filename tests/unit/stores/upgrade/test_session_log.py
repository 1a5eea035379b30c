"""The log of a copied session: bounded appends, and counts that end where they ended."""

from itertools import pairwise

from msgspec.structs import replace

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import Session, begin_session
from holdfast.core.transaction.changes import Entry, Event, LogAppended
from holdfast.stores.upgrade.copy import MAX_BYTES, MAX_ENTRIES, SessionLog

SESSION = begin_session(SessionId("ses_1"), Tenant("t"), now=1.0)


def _item(seq: int, body: bytes = b"{}") -> StoredItem:
    return StoredItem("ses_1", seq, 1, "message", None, None, b"", False, body)


def _event(no: int) -> Event:
    return Event(SessionId("ses_1"), no, Tenant("t"), "x", None, b"{}", 1.0)


def _built(session: Session, entries: list[Entry]) -> list[LogAppended]:
    log = SessionLog(session)
    appends = [append for entry in entries for append in log.add(entry)]
    return [*appends, *log.finish()]


def test_each_append_begins_where_the_one_before_it_ended() -> None:
    count = 3 * MAX_ENTRIES + 1
    session = replace(SESSION, head_seq=count)
    appends = _built(session, [Entry(items=[_item(seq)]) for seq in range(1, count + 1)])
    assert [len(append.entries) for append in appends] == [MAX_ENTRIES] * 3 + [1]
    assert appends[0].before is None
    for former, latter in pairwise(appends):
        assert latter.before == former.session
        assert latter.session.version == former.session.version + len(latter.entries)
    assert (appends[-1].session.version, appends[-1].session.head_seq) == (count, count)


def test_an_append_holds_no_more_bytes_than_it_may() -> None:
    half = b"x" * (MAX_BYTES // 2 + 1)
    session = replace(SESSION, head_seq=2)
    appends = _built(session, [Entry(items=[_item(1, half)]), Entry(items=[_item(2, half)])])
    assert [append.session.head_seq for append in appends] == [1, 2]


def test_numbers_of_events_that_were_pruned_are_left_out() -> None:
    session = replace(SESSION, event_no=9)
    appends = _built(session, [Entry(events=[_event(3), _event(4)]), Entry(events=[_event(7)])])
    assert [append.session.event_no for append in appends] == [4, 7, 9]
    assert appends[-1].entries == (Entry(),)


def test_a_session_in_which_nothing_happened_has_an_entry() -> None:
    (append,) = _built(SESSION, [])
    assert (append.session.version, append.entries) == (1, (Entry(),))


def test_the_next_run_has_an_epoch_of_its_own() -> None:
    appends = _built(replace(SESSION, epoch=200, head_seq=1), [Entry(items=[_item(1)])])
    assert appends[-1].session.version == 200
    assert (appends[-1].session.epoch, appends[-1].session.head_seq) == (200, 1)
