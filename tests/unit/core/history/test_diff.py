"""Which part of a request is new: each rule, and the whole against brute force."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.diff import HistoryDiff, LogEntry, SentItem, find_new
from holdfast.core.model.items import NewItem, message, write_item


def _sent(*words: str) -> list[SentItem]:
    """`u…` is a user's message, `a…` an assistant's, `r` reasoning, `c…` a call, `o…` an output."""
    return [_one(word) for word in words]


def _one(word: str) -> SentItem:
    match word[0]:
        case "u":
            return SentItem(message("user", word).fingerprint, "message", "user")
        case "a":
            item = message("assistant", word)
            return SentItem(item.fingerprint, "message", "assistant")
        case "r":
            return SentItem(b"", "reasoning")
        case "c":
            return SentItem(_call(word).fingerprint, "function_call")
        case _:
            return SentItem(_output(word).fingerprint, "function_call_output")


def _call(word: str) -> NewItem:
    return write_item({"type": "function_call", "name": word, "arguments": "{}", "call_id": word})


def _output(word: str) -> NewItem:
    return write_item({"type": "function_call_output", "output": word, "call_id": "c"})


def _log(*words: str, torn: tuple[str, ...] = (), refused: tuple[int, ...] = ()) -> list[LogEntry]:
    entries = []
    for seq, word in enumerate(words, 1):
        sent = _one(word)
        text = word if word in torn else None
        is_refused = seq in refused
        entries.append(LogEntry(seq, sent.fingerprint, sent.kind, text, None, is_refused))
    return entries


def test_only_user_messages_are_always_new() -> None:
    assert find_new(_sent("u1"), _log("u1", "a1")) == HistoryDiff(0)


def test_a_client_known_to_send_everything_may_have_dropped_every_answer() -> None:
    log = _log("u1", "a1", "u2", "a2")
    assert find_new(_sent("u1", "u9"), log, is_whole=True) == HistoryDiff(1, (1, 4))
    assert find_new(_sent("u9"), log, is_whole=True) == HistoryDiff(0, (0, 4))
    assert find_new(_sent("u9"), [], is_whole=True) == HistoryDiff(0)


def test_a_whole_history_adds_only_its_end() -> None:
    assert find_new(_sent("u1", "a1", "u2"), _log("u1", "a1")) == HistoryDiff(2)


def test_a_client_that_kept_only_the_end_of_the_history_is_recognised() -> None:
    assert find_new(_sent("u2", "a2", "u3"), _log("u1", "a1", "u2", "a2")) == HistoryDiff(2)


def test_an_edited_question_rewinds_to_before_it() -> None:
    log = _log("u1", "a1", "u2", "a2")
    assert find_new(_sent("u1", "a1", "u2b"), log) == HistoryDiff(2, (2, 4))


def test_the_same_question_again_regenerates_its_answer() -> None:
    log = _log("u1", "a1", "u2", "a2")
    assert find_new(_sent("u1", "a1", "u2"), log) == HistoryDiff(3, (3, 4))


def test_a_history_that_ends_in_its_answer_regenerates_it() -> None:
    log = _log("u1", "a1", "u2", "a2")
    assert find_new(_sent("u1", "a1", "u2", "a2"), log) == HistoryDiff(4, (3, 4))


def test_a_failed_turn_is_resumed_where_it_stopped() -> None:
    assert find_new(_sent("u1", "a1", "u2"), _log("u1", "a1", "u2")) == HistoryDiff(3)


def test_a_history_with_nothing_in_common_takes_the_place_of_ours() -> None:
    assert find_new(_sent("summary", "a9", "u3"), _log("u1", "a1")) == HistoryDiff(0, (0, 2))


def test_tool_outputs_are_new_behind_their_call() -> None:
    assert find_new(_sent("u1", "c1", "o1"), _log("u1", "c1")) == HistoryDiff(2)


def test_an_output_that_comes_by_itself_rewinds_nothing() -> None:
    assert find_new(_sent("o1"), _log("u1", "c1", "u2", "a2")) == HistoryDiff(0)
    assert find_new(_sent("o1", "u3"), _log("u1", "c1", "u2", "a2")) == HistoryDiff(0)


def test_reasoning_is_stepped_over_on_both_sides() -> None:
    assert find_new(_sent("u1", "a1", "u2"), _log("u1", "r", "a1")) == HistoryDiff(2)
    assert find_new(_sent("u1", "r", "a1", "u2"), _log("u1", "a1")) == HistoryDiff(3)


def test_reasoning_in_front_of_a_new_call_is_new_with_it() -> None:
    assert find_new(_sent("u1", "a1", "r", "c1", "o1"), _log("u1", "a1")) == HistoryDiff(2)


def test_an_incomplete_answer_matches_itself_and_its_absence() -> None:
    log = _log("u1", "a1 was going to say", torn=("a1 was going to say",))
    assert find_new(_sent("u1", "a1 was going to say", "u2"), log) == HistoryDiff(2)
    longer = [*log, *_log("x", "x", "u2", "a2")[2:]]
    assert find_new(_sent("u1", "u2", "a2", "u3"), longer) == HistoryDiff(3)


def test_the_part_of_an_incomplete_answer_that_was_shown_takes_its_place() -> None:
    log = _log("u1", "a1 was going to say", torn=("a1 was going to say",))
    assert find_new(_sent("u1", "a1 was", "u2"), log) == HistoryDiff(1, (1, 2))
    assert find_new(_sent("u1", "a1 was going to say more", "u2"), log) == HistoryDiff(1, (1, 2))


def test_refused_input_may_stand_at_its_place_or_be_absent() -> None:
    log = _log("u1", "a1", "ux", "u2", "a2", refused=(3,))
    assert find_new(_sent("u1", "a1", "ux", "u2", "a2", "u3"), log) == HistoryDiff(5)
    assert find_new(_sent("u1", "a1", "u2", "a2", "u3"), log) == HistoryDiff(4)
    # At another place it is something else.
    assert find_new(_sent("u1", "a1", "u2", "ux", "u3"), log) == HistoryDiff(3, (4, 5))


def test_refused_input_that_is_sent_last_is_asked_again() -> None:
    log = _log("u1", "a1", "ux", refused=(3,))
    assert find_new(_sent("u1", "a1", "ux"), log) == HistoryDiff(2)
    assert find_new(_sent("u1", "a1", "ux", "u2"), log) == HistoryDiff(3)


def test_a_refused_prompt_that_was_accepted_later_is_found_at_either_place() -> None:
    log = _log("u1", "a1", "ux", "ux", "a2", refused=(3,))
    assert find_new(_sent("u1", "a1", "ux", "a2", "u3"), log) == HistoryDiff(4)
    assert find_new(_sent("u1", "a1", "ux", "ux", "a2", "u3"), log) == HistoryDiff(5)


def test_refused_input_is_recognised_where_no_answer_was_given_yet() -> None:
    assert find_new(_sent("ux", "u2"), _log("ux", refused=(1,))) == HistoryDiff(1)
    assert find_new(_sent("ux"), _log("ux", refused=(1,))) == HistoryDiff(0)
    # A message that was answered is said a second time.
    log = _log("u1", "a1", "ux", refused=(3,))
    assert find_new(_sent("u1", "u2"), log) == HistoryDiff(0)


def test_a_long_history_of_equal_items_is_matched_in_bounded_time() -> None:
    log = _log(*["u1"] * 3000, "ux", "a1", refused=(3001,))
    assert find_new(_sent(*["u1"] * 3000, "a1", "u2"), log).new_from == 3001


def test_the_run_that_ends_at_the_head_wins_over_a_longer_one_before() -> None:
    log = _log("u1", "a1", "u2", "a2", "u1", "a1")
    assert find_new(_sent("u1", "a1", "u3"), log) == HistoryDiff(2)


_WORDS = st.sampled_from(["u1", "u2", "a1", "a2", "c1", "o1"])


@given(log=st.lists(_WORDS, max_size=8), sent=st.lists(_WORDS, min_size=1, max_size=6))
def test_the_longest_match_is_the_one_brute_force_finds(log: list[str], sent: list[str]) -> None:
    found = find_new(_sent(*sent), _log(*log))
    if not log or not any(word[0] in "ac" for word in sent):
        assert found == HistoryDiff(0)
        return
    at_head = [p for p in range(1, min(len(sent), len(log)) + 1) if sent[:p] == log[-p:]]
    anywhere = [
        p
        for p in range(1, len(sent) + 1)
        if any(sent[:p] == log[e - p : e] for e in range(p, len(log) + 1))
    ]
    best = max(at_head, default=max(anywhere, default=0))
    assert found.new_from == best
    if best == 0:
        assert found.rewind == (0, len(log))
    elif best < len(sent):
        assert (found.rewind is None) == bool(at_head)
