"""What a projection costs does not depend on the length of the history that it extends."""

import sys
from collections.abc import Callable
from typing import Any

from holdfast.core.model.items import NewItem, StoredItem, message, read_item
from holdfast.core.projection.prefix_cache import SharedPrefix
from holdfast.core.projection.project import project
from holdfast.engine.model_call.projection_cache import PART_ITEMS, ProjectionCache, project_whole


def _item(seq: int, role: str, text: str) -> StoredItem:
    return _stored(seq, message(role, text))


def _stored(seq: int, new: NewItem) -> StoredItem:
    turn = (seq + 1) // 2
    return StoredItem("s", seq, turn, new.kind, None, new.call_id, new.fingerprint, False, new.body)


def _log(count: int) -> list[StoredItem]:
    return [_item(n, "assistant" if n % 2 == 0 else "user", f"t{n}") for n in range(1, count + 1)]


def _calls(work: Callable[[], object]) -> int:
    """Return how many functions a piece of work calls."""
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_history_that_grows_by_a_turn_is_projected_from_where_it_ended() -> None:
    for length in (101, 2001):
        cache, log = ProjectionCache(), _log(length)
        grown = SharedPrefix([*log, *_log(length + 2)[length:]])
        cache.project("s", grown.upto(length))
        assert _calls(lambda: cache.project("s", grown)) < 20  # noqa: B023 - called at once


def test_a_regenerate_projects_the_tail_alone_even_from_a_list_that_was_read_again() -> None:
    for length in (101, 2001):
        cache, log = ProjectionCache(), _log(length)
        cache.project("s", SharedPrefix(log))
        rewound = [*log[: length - 3], _item(length + 1, "user", "again")]
        shown, _ = cache.project("s", SharedPrefix(list(rewound)))
        assert [*shown] == [item.body for item in rewound]
        anew = SharedPrefix([*rewound[:-1], _item(length + 2, "user", "and again")])
        assert _calls(lambda: cache.project("s", anew)) < 20 + 2 * PART_ITEMS  # noqa: B023


def test_an_item_that_is_set_aside_later_is_replaced_in_what_was_projected_before() -> None:
    cache, log = ProjectionCache(), SharedPrefix(_log(5))
    before, _ = cache.project("s", log)
    shown, _ = cache.project("s", log, frozenset({2}))
    assert shown[1] != before[1]
    assert [*shown] == project(log, frozenset({2}))


def test_an_output_that_comes_late_takes_the_place_of_the_one_that_was_made_up() -> None:
    call = read_item(b'{"type":"function_call","call_id":"c1","name":"look","arguments":"{}"}')
    output = read_item(b'{"type":"function_call_output","call_id":"c1","output":"found"}')
    log = SharedPrefix(
        [_item(1, "user", "look"), _stored(2, call), _item(3, "user", "well?"), _stored(4, output)]
    )
    cache = ProjectionCache()
    before, _ = cache.project("s", log.upto(3))
    assert len(before) == 4
    shown, _ = cache.project("s", log)
    assert output.body in shown
    assert [*shown] == project(log)


def test_a_prefix_is_indexed_without_a_copy() -> None:
    prefix = SharedPrefix(list(range(1000))).upto(500)
    assert (prefix[0], prefix[-1], prefix[499]) == (0, 499, 499)
    assert prefix[490:] == list(range(490, 500))
    assert prefix[::-100] == [499, 399, 299, 199, 99]
    for place in (500, -501):
        try:
            prefix[place]
        except IndexError:
            continue
        raise AssertionError(f"{place} is outside")


def test_a_projection_without_a_cache_has_the_same_bodies_and_hash() -> None:
    log = _log(PART_ITEMS + 5)
    bodies, hasher = project_whole(log, frozenset({3}))
    cached, same = ProjectionCache().project("s", log, frozenset({3}))
    assert [*bodies] == [*cached]
    assert hasher.digest() == same.digest()
