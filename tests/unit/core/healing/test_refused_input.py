"""What a refusal of a whole request may be about."""

import pytest

from holdfast.core.healing.refused_items import (
    Suspects,
    find_question,
    find_suspects,
    leave_out,
)
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem, message, read_item


def _log(*turns: str) -> list[StoredItem]:
    """Return a log of messages of these roles, of calls and of outputs, by turns."""
    items: list[StoredItem] = []
    placed = [(turn, role) for turn, roles in enumerate(turns, 1) for role in roles.split()]
    for seq, (turn, role) in enumerate(placed, 1):
        if role == "call":
            new = read_item(b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}')
        elif role == "output":
            new = read_item(b'{"type":"function_call_output","call_id":"c","output":"o"}')
        else:
            new = message(role, str(seq))
        items.append(
            StoredItem(
                SessionId("ses_1"),
                seq,
                turn,
                new.kind,
                f"id{seq}",
                new.call_id,
                new.fingerprint,
                False,
                new.body,
            )
        )
    return items


@pytest.mark.parametrize(
    ("roles", "first"),
    [
        ("user user", 1),
        ("system user", 2),
        ("user assistant user", 3),
        ("output user", 2),
        ("output output", 1),
        ("user assistant", 1),
        ("", None),
    ],
)
def test_the_question_is_what_the_input_ends_with(roles: str, first: int | None) -> None:
    assert find_question(_log(roles)) == first


def test_the_questions_of_turns_without_an_answer_come_first() -> None:
    log = _log("user assistant", "developer user", "user", "user")
    found = find_suspects(log, 6, 6, answered=2)
    assert (found.questions, found.unanswered) == ((4, 5), (3, 4, 5))


def test_what_a_model_has_answered_is_not_to_blame() -> None:
    log = _log("user assistant", "user")
    assert find_suspects(log, 3, 3, answered=2) == Suspects()
    assert find_suspects(_log("system user assistant", "user"), 4, 4, answered=3) == Suspects()


def test_a_text_that_no_model_wrote_is_no_answer() -> None:
    log = _log("user assistant", "user", "assistant", "user")
    found = find_suspects(log, 5, 5, answered=2)
    assert (found.questions, found.unanswered) == ((3,), (3, 4))


def test_what_is_left_of_an_answer_goes_with_its_question() -> None:
    log = _log("user assistant", "user assistant", "user")
    found = find_suspects(log, 5, 5, answered=2)
    assert (found.questions, found.unanswered) == ((3, 4), (3, 4))


def test_a_history_before_a_refused_question_is_left_out_last() -> None:
    log = _log("user assistant user assistant user", "user")
    found = find_suspects(log, 6, 6, answered=0)
    assert (found.questions, found.unanswered) == ((5,), (1, 2, 3, 4, 5))


def test_without_a_question_all_that_is_unanswered_is_left_out() -> None:
    log = _log("system", "assistant", "user")
    found = find_suspects(log, 3, 3, answered=0)
    assert (found.questions, found.unanswered) == ((), (1, 2))


def test_instructions_stand_first_and_are_found_by_their_number() -> None:
    log = _log("user assistant", "system", "user")
    shown = [log[2], log[0], log[1], log[3]]
    found = find_suspects(shown, 4, 4, answered=2)
    assert (found.questions, found.unanswered) == ((), (3,))


def test_a_run_without_input_repeats_the_question_of_the_last_turn() -> None:
    log = _log("user assistant", "user", "user")
    found = find_suspects(log, 5, 4, answered=2)
    assert (found.questions, found.unanswered) == ((3,), (3,))
    assert find_suspects(_log("user assistant", "user"), 4, 3, answered=2) == Suspects()


def test_an_answer_that_the_client_sends_is_left_out_with_its_question() -> None:
    found = find_suspects(_log("assistant", "user", "assistant user"), 3, 4, answered=1)
    assert (found.questions, found.unanswered) == ((2, 3), (2, 3))


def test_a_call_whose_output_is_the_question_stays() -> None:
    found = find_suspects(_log("user call", "output"), 3, 3, answered=0)
    assert (found.questions, found.unanswered) == ((1,), (1,))


def test_an_output_is_left_out_as_a_placeholder_unless_its_call_is_left_out() -> None:
    log = _log("user call", "output", "user")
    found = find_suspects(log, 4, 4, answered=2)
    assert found.questions == (3,)
    history, placeholders = leave_out(log, found.questions)
    assert ([item.seq for item in history], placeholders) == ([1, 2, 3, 4], frozenset({3}))
    history, placeholders = leave_out(log, (1, 2, 3))
    assert ([item.seq for item in history], placeholders) == ([4], frozenset())
