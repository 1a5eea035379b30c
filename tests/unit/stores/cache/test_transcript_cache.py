"""Whole transcripts in memory: used where they hold, never too large, never older than before."""

from msgspec.structs import replace

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.session import Session, begin_session
from holdfast.engine.clock import SystemClock
from holdfast.ports.store import Transcript
from holdfast.stores.cache.context_cache import CachedTranscript, TranscriptCache, listed
from holdfast.stores.open import open_store
from holdfast.stores.sql import queries
from holdfast.testing.store_client import StoreClient


def _session(name: str = "ses_a", *, head_seq: int = 1, record_no: int = 0) -> Session:
    fresh = begin_session(SessionId(name), Tenant("t"), now=0.0)
    return replace(fresh, head_seq=head_seq, record_no=record_no)


def test_items_are_listed_behind_others() -> None:
    assert listed([]) == b"[]"
    assert listed([b"1"]) == b"[1]"
    assert listed([b"1", b"2", b"3"]) == b"[1,2,3]"
    assert listed([], b"[1]") == b"[1]"
    assert listed([b"2"], b"[1]") == b"[1,2]"
    assert listed([b"2", b"3"], b"[1]") == b"[1,2,3]"


async def test_who_reads_again_reads_only_what_is_new() -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        before = await caller.converse("a", "b", key="k")
        known = TranscriptCache()
        known.keep(before.session, b"[1]")
        after = await caller.converse("c", "d", key="k")
        again = await store.query(
            lambda _: queries.transcript(caller.tenant, after.session.id, None, None, known)
        )
        end = await caller.read.transcript(caller.tenant, session_id=after.session.id, last=2)
        assert isinstance(again, Transcript)
        assert end is not None
        assert again.listed == b"[1," + end.listed[1:]
    finally:
        await store.close()


def test_a_reading_holds_for_later_heads_under_as_many_records() -> None:
    known = TranscriptCache()
    known.keep(_session(head_seq=4, record_no=2), b"[1]")
    assert known.find(_session(head_seq=4, record_no=2)) == CachedTranscript(2, 4, b"[1]")
    assert known.find(_session(head_seq=9, record_no=2)) == CachedTranscript(2, 4, b"[1]")
    assert known.find(_session(head_seq=3, record_no=2)) is None
    assert known.find(_session(head_seq=4, record_no=3)) is None
    assert known.find(_session("ses_b", head_seq=4, record_no=2)) is None


def test_an_older_reading_does_not_take_the_place_of_a_newer_one() -> None:
    known = TranscriptCache()
    known.keep(_session(head_seq=4, record_no=2), b"[1]")
    known.keep(_session(head_seq=3, record_no=2), b"[]")
    known.keep(_session(head_seq=4, record_no=1), b"[]")
    assert known.find(_session(head_seq=4, record_no=2)) == CachedTranscript(2, 4, b"[1]")


def test_what_a_fork_shows_is_not_kept() -> None:
    known = TranscriptCache()
    fork = replace(_session(head_seq=4), parent_id=SessionId("ses_b"), parent_seq=3)
    known.keep(fork, b"[1]")
    assert known.find(fork) is None


def test_readings_are_bounded_and_the_one_read_longest_ago_goes_first() -> None:
    known = TranscriptCache(max_bytes=10)
    first, second, third = (_session(name) for name in ("ses_a", "ses_b", "ses_c"))
    known.keep(first, b"[11]")
    known.keep(second, b"[22]")
    known.keep(first, b"[11]")
    known.keep(third, b"[33]")
    assert known.find(second) is None
    assert known.find(first) is not None
    assert known.find(third) is not None
    assert known.held_bytes == 8
    known.keep(second, b"[2222]")
    assert known.find(second) is None
    known.drop(SessionId("ses_a"))
    assert known.held_bytes == 4
