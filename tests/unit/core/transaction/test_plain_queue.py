"""A turn that only waits, and an end that hands the lane over, equal what is decided in steps."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.accept import accept_any
from holdfast.core.decisions.run import finish_any
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Ended, Finish, Queued
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.plain_turns import hand_over_plainly, queue_plainly
from tests.unit.core.builders import NOW, an_accept
from tests.unit.core.plain_commands import an_end
from tests.unit.core.plain_queue_commands import (
    OTHER_HAND_OVERS,
    OTHER_QUEUED,
    PLAIN_HAND_OVERS,
    PLAIN_QUEUED,
    Busy,
    named_turn,
)


def queued_plainly(fields: dict[str, Any], facts: Facts) -> Decision[Any] | None:
    """Return the decision in one step on the lane of the facts, if there is one."""
    assert facts.session is not None
    assert facts.active is not None
    command = an_accept(**fields)
    return queue_plainly(command, facts.session, facts.active, facts.waiting, NOW)


@pytest.mark.parametrize(("fields", "lane"), PLAIN_QUEUED)
def test_a_turn_that_waits_is_what_the_steps_come_to(fields: dict[str, Any], lane: Busy) -> None:
    plain = queued_plainly(fields, lane[0])
    assert plain is not None
    assert isinstance(plain.outcome, Queued)
    assert plain == accept_any(an_accept(**fields), lane[0])


@pytest.mark.parametrize(("fields", "lane"), OTHER_QUEUED)
def test_any_other_arrival_is_decided_step_by_step(fields: dict[str, Any], lane: Busy) -> None:
    # Whoever calls has found out that the turn is no retry.
    assert queued_plainly(fields, lane[0]) is None or fields == {"retry_count": 1}


def handed_over(command: Finish, lane: Busy) -> Decision[Ended] | None:
    facts, waiting = lane
    assert facts.session is not None
    assert facts.active is not None
    assert facts.active_run is not None
    return hand_over_plainly(
        command, facts.session, facts.active, facts.active_run, waiting[0], NOW
    )


@pytest.mark.parametrize(("fields", "lane"), PLAIN_HAND_OVERS)
def test_an_end_that_hands_the_lane_over_is_what_the_steps_come_to(
    fields: dict[str, Any], lane: Busy
) -> None:
    facts, waiting = lane
    command = an_end(facts, **fields)
    plain = handed_over(command, lane)
    assert plain is not None
    assert isinstance(plain.outcome, Ended)
    assert plain.outcome.successor is not None
    assert facts.session is not None
    assert facts.active is not None
    assert facts.active_run is not None
    known = replace(facts, turn=named_turn(fields, waiting))
    steps = finish_any(command, known, facts.session, facts.active, facts.active_run)
    assert plain == steps


@pytest.mark.parametrize(("fields", "lane"), OTHER_HAND_OVERS)
def test_any_other_end_on_a_busy_lane_is_decided_step_by_step(
    fields: dict[str, Any], lane: Busy
) -> None:
    assert handed_over(an_end(lane[0], **fields), lane) is None
