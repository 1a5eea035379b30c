"""A turn's state follows from its session's lane, until its end is stored."""

import pytest

from tests.unit.core.builders import a_session, a_started_turn, a_turn, held, running


def test_an_open_turn_without_the_lane_is_queued() -> None:
    assert a_turn().status(a_session(), has_live_owner=False) == "queued"


def test_an_open_turn_with_the_lane_is_running_while_its_owner_lives() -> None:
    facts = running()
    assert facts.active is not None
    assert facts.session is not None
    assert facts.active.status(facts.session, has_live_owner=True) == "running"
    assert facts.active.status(facts.session, has_live_owner=False) == "interrupted"


def test_a_turn_that_waits_for_the_clients_tools_requires_action() -> None:
    facts = held()
    assert facts.active is not None
    assert facts.session is not None
    assert facts.active.status(facts.session, has_live_owner=False) == "requires_action"


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "interrupted"])
def test_an_end_is_an_end_whatever_the_lane_says(outcome: str) -> None:
    facts = running()
    assert facts.session is not None
    turn = a_started_turn(outcome=outcome)
    assert turn.status(facts.session, has_live_owner=True) == outcome
    assert not turn.is_open
