"""The lane: places in the queue, taking it over, giving it up."""

from holdfast.core.admission import accept
from holdfast.core.commands import Queued
from tests.unit.core.scenes import a_started_turn, an_accept, answer, running


def test_a_new_turn_waits_behind_a_resumed_one_at_a_place_of_its_own() -> None:
    resumed = a_started_turn(number=1, position=4)
    decision = accept(an_accept(), running(resumed, session={"turn_count": 3}))
    assert answer(decision, Queued).turn.position == 5
