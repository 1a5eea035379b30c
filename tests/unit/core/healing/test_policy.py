"""What is done about a provider's failure: one heal for each class, bounded, never a loop."""

import itertools
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.errors import FailureClass
from holdfast.core.healing.policy import (
    Heal,
    HealLimits,
    Symptoms,
    Treatment,
    read_heals,
    treat,
    write_heals,
)

LIMITS = HealLimits()


def treated(symptoms: Symptoms) -> Treatment:
    treatment = treat(symptoms, [], LIMITS)
    assert treatment is not None
    return treatment


def test_forgotten_state_is_dropped_and_the_whole_history_is_sent() -> None:
    treatment = treated(Symptoms(failure_class="stale_state", uses_state=True, code="x"))
    assert treatment.heal == Heal("stale_state", "dropped_state", "x")
    assert treatment.drops_state
    assert not treatment.strips_opaque


def test_where_nothing_was_chained_the_sealed_content_is_left_out() -> None:
    treatment = treated(Symptoms(failure_class="stale_state"))
    assert treatment.strips_opaque
    assert treat(Symptoms(failure_class="stale_state", has_opaque=False), [], LIMITS) is None


def test_foreign_seals_are_left_out() -> None:
    assert treated(Symptoms(failure_class="foreign_opaque")).strips_opaque
    assert treat(Symptoms(failure_class="foreign_opaque", has_opaque=False), [], LIMITS) is None


@pytest.mark.parametrize("failure_class", ["stale_state", "foreign_opaque"])
def test_a_heal_that_did_not_help_is_not_tried_again(failure_class: FailureClass) -> None:
    symptoms = Symptoms(failure_class=failure_class, uses_state=True)
    assert treat(symptoms, [treated(symptoms).heal], LIMITS) is None


@pytest.mark.parametrize(
    "failure_class",
    ["stale_state", "foreign_opaque", "busy", "transient", "shape", "overflow", "poison",
     "terminal"],
)  # fmt: skip
def test_nothing_is_healed_once_a_word_has_left(failure_class: FailureClass) -> None:
    symptoms = Symptoms(failure_class=failure_class, has_output=True, uses_state=True)
    assert treat(symptoms, [], LIMITS) is None


def test_a_refused_form_is_sent_again_in_the_plainest_form_once() -> None:
    symptoms = Symptoms(failure_class="shape", uses_state=True)
    treatment = treated(symptoms)
    assert (treatment.repairs, treatment.drops_state) == (True, True)
    assert treat(symptoms, [treatment.heal], LIMITS) is None
    assert treat(replace(symptoms, is_plain=True), [], LIMITS) is None


def test_what_is_too_long_is_made_shorter_a_few_times() -> None:
    symptoms = Symptoms(failure_class="overflow", can_shrink=True, uses_state=True)
    done: list[Heal] = []
    while (treatment := treat(symptoms, done, LIMITS)) is not None:
        assert (treatment.shrinks, treatment.drops_state) == (True, True)
        done.append(treatment.heal)
    assert len(done) == LIMITS.shrinks


def test_what_a_provider_cannot_take_is_set_aside_a_few_times() -> None:
    symptoms = Symptoms(failure_class="poison", suspects=(3, 5))
    done: list[Heal] = []
    while (treatment := treat(symptoms, done, LIMITS)) is not None:
        assert treatment.heal.items == (3, 5)
        done.append(treatment.heal)
    assert len(done) == LIMITS.quarantines


@pytest.mark.parametrize("failure_class", ["transient", "busy", "overflow", "terminal"])
def test_another_model_is_asked_when_nothing_else_helps(failure_class: FailureClass) -> None:
    symptoms = Symptoms(failure_class=failure_class, retry_after=3600.0, fallback="other")
    treatment = treated(symptoms)
    assert (treatment.heal.action, treatment.heal.next_model) == ("fell_back", "other")
    assert treat(replace(symptoms, blames_request=True), [], LIMITS) is None
    assert treat(replace(symptoms, has_output=True), [], LIMITS) is None


def test_another_model_is_healed_for_itself() -> None:
    symptoms = Symptoms(failure_class="transient", fallback="other")
    done: list[Heal] = []
    while (heal := treated_after(symptoms, done)).action != "fell_back":
        done.append(heal)
    assert len(done) == LIMITS.transient_retries
    done.append(heal)
    last = replace(symptoms, fallback=None)
    assert treated_after(last, done).action == "retried"
    done += done[:2]
    assert treat(last, done, LIMITS) is None


def treated_after(symptoms: Symptoms, done: list[Heal]) -> Heal:
    treatment = treat(symptoms, done, LIMITS)
    assert treatment is not None
    return treatment.heal


@pytest.mark.parametrize("failure_class", ["overflow", "poison", "terminal"])
def test_what_asking_again_cannot_help_is_left_to_fail(failure_class: FailureClass) -> None:
    assert treat(Symptoms(failure_class=failure_class), [], LIMITS) is None


def test_a_broken_call_is_made_again_with_growing_pauses_and_then_no_more() -> None:
    done: list[Heal] = []
    while (treatment := treat(Symptoms(failure_class="transient"), done, LIMITS)) is not None:
        done.append(treatment.heal)
    assert [heal.pause_seconds for heal in done] == [0.5, 1.0]


def test_a_call_that_broke_late_is_not_made_again() -> None:
    late = Symptoms(failure_class="transient", elapsed_seconds=60.1)
    assert treat(late, [], LIMITS) is None


def test_a_busy_server_is_waited_for_as_long_as_a_turn_may_wait() -> None:
    done: list[Heal] = []
    while (treatment := treat(Symptoms(failure_class="busy"), done, LIMITS)) is not None:
        done.append(treatment.heal)
    pauses = [heal.pause_seconds for heal in done]
    assert pauses == [0.5, 1, 2, 4, 8, 8]
    assert sum(pauses) <= LIMITS.busy_wait_seconds


@pytest.mark.parametrize("failure_class", ["busy", "transient"])
def test_a_provider_that_says_how_long_is_believed_up_to_a_bound(
    failure_class: FailureClass,
) -> None:
    short = treated(Symptoms(failure_class=failure_class, retry_after=3.0))
    assert short.heal.pause_seconds == 3.0
    long = Symptoms(failure_class=failure_class, retry_after=8.1)
    assert treat(long, [], LIMITS) is None


def test_a_conversation_is_not_trusted_after_a_broken_call_but_a_chain_is() -> None:
    broken = Symptoms(failure_class="transient", uses_state=True)
    assert not treated(broken).drops_state
    changed = Symptoms(failure_class="transient", uses_state=True, is_state_mutable=True)
    assert treated(changed).drops_state


def test_other_classes_do_not_count_against_each_other() -> None:
    done = [Heal("transient", "retried"), Heal("transient", "retried")]
    assert treat(Symptoms(failure_class="stale_state", uses_state=True), done, LIMITS) is not None


def test_heals_are_kept_as_they_were() -> None:
    heals = [Heal("busy", "waited", "conversation_locked", 0.5), Heal("transient", "retried")]
    assert read_heals(write_heals(heals)) == heals
    assert read_heals(None) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(get_args(FailureClass)),
            st.sampled_from([None, 0.0, 1.0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_a_provider_does_a_turn_has_an_end(
    failures: list[tuple[FailureClass, float | None, bool]],
) -> None:
    done: list[Heal] = []
    left = ["b", "c"]
    for failure_class, retry_after, has_state in itertools.cycle(failures):
        symptoms = Symptoms(
            failure_class=failure_class, retry_after=retry_after, uses_state=has_state,
            can_shrink=True, suspects=(1,), fallback=left[0] if left else None,
        )  # fmt: skip
        treatment = treat(symptoms, done, LIMITS)
        if treatment is None:
            break
        if treatment.heal.action == "fell_back":
            left.pop(0)
        done.append(treatment.heal)
        assert len(done) < 80
