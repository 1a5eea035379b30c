"""Which ancestor keeps which items, found without looking at all ancestors."""

import random

from holdfast.core.ids import SessionId
from holdfast.stores.cache.lineage_cache import ANCESTOR_BYTES, Lineage, LineageCache, Part

ROOT, CHILD = SessionId("root"), SessionId("child")


def a_line(*parent_seqs: int, since: int = 0) -> Lineage:
    return Lineage([(SessionId(f"ses_{at}"), at, seq) for at, seq in enumerate(parent_seqs)], since)


def owners_one_by_one(parent_seqs: list[int], first: int, last: int) -> list[Part]:
    """Return the same as `between`, by looking at every ancestor."""
    found: list[Part] = []
    for at, parent_seq in enumerate(parent_seqs):
        if max(first, parent_seq + 1) <= last:
            found.append(Part(SessionId(f"ses_{at}"), max(first, parent_seq + 1), last))
        last = min(last, parent_seq)
        if first > last:
            break
    return found


def test_each_part_of_a_range_is_found_with_its_owner() -> None:
    line = a_line(8, 4, 0)
    assert [(part.first, part.last) for part in line.between(3, 9)] == [(9, 9), (5, 8), (3, 4)]
    assert line.between(1, 2) == [Part(SessionId("ses_2"), 1, 2)]
    assert line.by_session[1] == (5, 8)


def test_an_ancestor_that_was_forked_before_its_first_item_stores_nothing() -> None:
    line = a_line(3, 7, 0)
    assert line.between(1, 9) == [Part(SessionId("ses_0"), 4, 9), Part(SessionId("ses_2"), 1, 3)]


def test_any_range_of_any_lineage_has_the_owners_that_a_full_scan_finds() -> None:
    choose = random.Random(7)
    for _ in range(2000):
        parent_seqs = [choose.randrange(30) for _ in range(choose.randrange(8))] + [0]
        first = choose.randrange(1, 32)
        last = choose.randrange(first, 33)
        found = a_line(*parent_seqs).between(first, last)
        assert found == owners_one_by_one(parent_seqs, first, last), (parent_seqs, first, last)


def test_a_lineage_is_known_only_as_far_back_as_it_was_read() -> None:
    cache = LineageCache()
    line = a_line(8, 4, since=5)
    cache.keep(CHILD, line)
    assert cache.find(CHILD, 5) is line
    assert cache.find(CHILD, 4) is None
    assert cache.find(ROOT, 9) is None


def test_a_lineage_that_would_evict_most_others_is_not_cached() -> None:
    cache = LineageCache(max_bytes=16 * ANCESTOR_BYTES)
    cache.keep(CHILD, a_line(3, 2, 1))
    cache.keep(ROOT, a_line(4, 3, 2, 1))
    assert cache.find(CHILD, 5) is not None
    assert cache.find(ROOT, 5) is None
