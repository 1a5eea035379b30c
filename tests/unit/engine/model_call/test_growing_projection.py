"""What a projection costs does not depend on the length of the history that it extends."""

import gc
import sys
from collections.abc import Callable
from typing import Any

from holdfast.core.model.items import NewItem, StoredItem, message, read_item
from holdfast.core.model.request import hash_items
from holdfast.core.projection.growing_list import Form, share
from holdfast.core.projection.project import project
from holdfast.engine.model_call.growing_projection import PART_ITEMS, project_grown
from holdfast.providers.openai_chat.input import ChatForm, ChatInputWriter, TranslationCache


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
        grown = share(_log(length + 2))
        project_grown(grown.upto(length))
        assert _calls(lambda: project_grown(grown)) < 20  # noqa: B023 - called at once


def test_a_regenerate_projects_the_tail_alone() -> None:
    for length in (101, 2001):
        log = share(_log(length))
        project_grown(log)
        for number in (1, 2):
            log = share(log.shared.without(length - 3, length))
            log = log.grown([_item(length + number, "user", f"again {number}")])
            expected = [item.body for item in log]
            assert _calls(lambda: project_grown(log)) < 20 + 2 * PART_ITEMS  # noqa: B023
            shown, digest = project_grown(log)
            assert [*shown] == expected
            assert digest == hash_items(expected)


def test_a_fork_projects_nothing_again() -> None:
    log = share(_log(2001))
    project_grown(log)
    forked = share(log.shared.upto(1000))
    assert _calls(lambda: project_grown(forked)) < 10
    assert [*project_grown(forked)[0]] == [item.body for item in log][:1000]
    assert [*project_grown(log)[0]] == [item.body for item in log]


def test_a_context_that_is_forgotten_takes_all_that_was_made_of_it_along() -> None:
    aside, form = frozenset({998, 999}), ChatForm("of this test alone")

    def made() -> list[Form]:
        gc.collect()
        found = [one for one in gc.get_objects() if issubclass(type(one), Form)]
        return [one for one in found if one.key in (aside, form)]

    log = share(_log(5))
    shown, _ = project_grown(log, aside)
    ChatInputWriter(TranslationCache()).write(shown, form)
    assert len(made()) == 2
    del log, shown
    assert made() == []


def test_an_item_that_is_set_aside_later_is_replaced_in_what_was_projected_before() -> None:
    log = share(_log(5))
    before, _ = project_grown(log)
    shown, _ = project_grown(log, frozenset({2}))
    assert shown[1] != before[1]
    assert [*shown] == project(log, frozenset({2}))


def test_an_output_that_comes_late_takes_the_place_of_the_one_that_was_made_up() -> None:
    call = read_item(b'{"type":"function_call","call_id":"c1","name":"look","arguments":"{}"}')
    output = read_item(b'{"type":"function_call_output","call_id":"c1","output":"found"}')
    log = share(
        [_item(1, "user", "look"), _stored(2, call), _item(3, "user", "well?"), _stored(4, output)]
    )
    before, _ = project_grown(log.upto(3))
    assert len(before) == 4
    shown, _ = project_grown(log)
    assert output.body in shown
    assert [*shown] == project(log)
