"""The lane: places in the queue, taking it over, giving it up."""

from holdfast.core.decisions.accept import accept
from holdfast.core.decisions.lane import end_dead_owner
from holdfast.core.transaction.commands import Queued
from holdfast.core.transaction.session_draft import Draft
from tests.unit.core.builders import (
    LIMITS,
    OTHER_WORKER,
    WORKER,
    a_started_turn,
    an_accept,
    answer,
    running,
    waiting,
)


def test_a_new_turn_waits_behind_a_resumed_one_at_a_place_of_its_own() -> None:
    resumed = a_started_turn(number=1, position=4)
    decision = accept(an_accept(), running(resumed, session={"turn_count": 3}))
    assert answer(decision, Queued).turn.position == 5


def test_a_turn_that_goes_back_does_not_overtake_one_that_cut_in_before_it() -> None:
    lost = a_started_turn(position=1, owner=OTHER_WORKER, source="cron")
    facts = running(lost, waiting=waiting(0, 2), has_live_owner=False)
    assert facts.session is not None
    draft = Draft(facts.session, now=facts.now)
    settled = end_dead_owner(draft, facts, worker=WORKER, limits=LIMITS)
    assert (settled.waiting.count, settled.waiting.first_position) == (3, 0)
