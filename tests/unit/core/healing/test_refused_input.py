"""What a refusal of a whole request may be about."""

from holdfast.core.healing.refused_items import find_refused_input
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem, message, read_item


def _log(*roles: str) -> list[StoredItem]:
    """Return a log of messages of these roles, of calls and of outputs."""
    items = []
    for seq, role in enumerate(roles, 1):
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
                1,
                new.kind,
                f"id{seq}",
                new.call_id,
                new.fingerprint,
                False,
                new.body,
            )
        )
    return items


def test_the_messages_at_the_end_of_the_input_are_refused_together() -> None:
    found = find_refused_input(_log("user", "assistant", "user", "user"), 3, 4)
    assert (found.first, found.unanswered) == (3, ())


def test_what_comes_before_the_messages_of_the_input_is_not_refused() -> None:
    assert find_refused_input(_log("system", "user"), 1, 2).first == 2
    assert find_refused_input(_log("user", "assistant", "user"), 1, 3).first == 3
    assert find_refused_input(_log("user", "call", "output", "user"), 3, 4).first == 4


def test_tool_outputs_at_the_end_are_refused_together() -> None:
    log = _log("user", "call", "call", "output", "output")
    assert find_refused_input(log, 4, 5).first == 4


def test_a_run_without_input_refuses_nothing() -> None:
    found = find_refused_input(_log("user", "assistant", "user"), 4, 3)
    assert (found.first, found.unanswered) == (4, ())


def test_input_of_earlier_turns_without_an_answer_may_be_to_blame() -> None:
    log = _log("user", "assistant", "developer", "user", "user", "user")
    found = find_refused_input(log, 6, 6)
    assert (found.first, found.unanswered, found.instructions) == (6, (4, 5), (3,))


def test_instructions_that_a_model_has_followed_are_not_to_blame() -> None:
    log = _log("system", "user", "assistant", "user")
    assert find_refused_input(log, 4, 4).instructions == ()


def test_instructions_stand_first_and_are_found_by_their_number() -> None:
    log = _log("user", "assistant", "system", "user")
    shown = [log[2], log[0], log[1], log[3]]
    found = find_refused_input(shown, 4, 4)
    assert (found.unanswered, found.instructions) == ((), (3,))


def test_what_a_model_has_answered_is_not_to_blame() -> None:
    assert find_refused_input(_log("user", "call", "user"), 3, 3).unanswered == ()


def test_an_answer_that_the_client_sends_is_left_out_with_its_question() -> None:
    found = find_refused_input(_log("assistant", "user", "assistant", "user"), 3, 4)
    assert (found.first, found.unanswered) == (4, (2, 3))


def test_other_messages_of_the_same_input_are_never_left_out() -> None:
    found = find_refused_input(_log("assistant", "user", "user", "assistant", "user"), 3, 5)
    assert (found.first, found.unanswered) == (5, (2,))
