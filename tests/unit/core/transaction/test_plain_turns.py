"""The plain start and the plain end of a turn equal what is decided step by step."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.accept import accept, accept_any
from holdfast.core.decisions.run import finish, finish_any
from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept, Finish, Repeated
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.plain_turns import (
    ACCEPT_OPTIONS,
    FINISH_OPTIONS,
    end_plainly,
    start_plainly,
)
from tests.unit.core.builders import a_fence, a_turn, an_accept, idle, running
from tests.unit.core.plain_commands import (
    CHAINED_STARTS,
    OTHER_ENDS,
    OTHER_STARTS,
    PLAIN_ENDS,
    PLAIN_STARTS,
    an_end,
    same,
)


def started_plainly(command: Accept, facts: Facts) -> Decision[Any] | None:
    """Return the decision in one step on the session of the facts, if there is one."""
    if facts.session is None:
        return None
    return start_plainly(command, facts.session, facts.waiting, facts.now)


def ended_plainly(command: Finish, facts: Facts) -> Decision[Any] | None:
    """Return the decision in one step on the lane of the facts."""
    session, turn, run = facts.session, facts.active, facts.active_run
    assert session is not None
    assert turn is not None
    assert run is not None
    return end_plainly(command, session, turn, run, facts.waiting, facts.now)


@pytest.mark.parametrize(("command", "lane"), [*PLAIN_STARTS, *CHAINED_STARTS])
def test_a_plain_start_is_what_the_steps_come_to(
    command: dict[str, Any], lane: dict[str, Any]
) -> None:
    accepting, facts = an_accept(**command), idle(**lane)
    plain = started_plainly(accepting, facts)
    assert plain is not None
    assert accept(accepting, facts) == plain == accept_any(accepting, facts)


@pytest.mark.parametrize(("command", "facts"), [*OTHER_STARTS, ({}, running())])
def test_any_other_start_is_decided_step_by_step(command: dict[str, Any], facts: Facts) -> None:
    accepting = an_accept(**command)
    assert started_plainly(accepting, facts) is None
    assert same(accept(accepting, facts), accept_any(accepting, facts))


def test_a_repeat_is_decided_step_by_step() -> None:
    facts = idle(turn=a_turn())
    accepting = an_accept(retry_count=1)
    decision = accept(accepting, facts)
    assert isinstance(decision.outcome, Repeated)
    assert decision == accept_any(accepting, facts)


def decided_in_steps(command: Finish, facts: Facts) -> Decision[Any]:
    assert facts.session is not None
    assert facts.active is not None
    assert facts.active_run is not None
    return finish_any(command, facts, facts.session, facts.active, facts.active_run)


@pytest.mark.parametrize(("command", "facts"), PLAIN_ENDS)
def test_a_plain_end_is_what_the_steps_come_to(command: dict[str, Any], facts: Facts) -> None:
    ending = an_end(facts, **command)
    plain = ended_plainly(ending, facts)
    assert plain is not None
    assert finish(ending, facts) == plain == decided_in_steps(ending, facts)


@pytest.mark.parametrize(("command", "facts"), OTHER_ENDS)
def test_any_other_end_is_decided_step_by_step(command: dict[str, Any], facts: Facts) -> None:
    ending = an_end(facts, **command)
    assert ended_plainly(ending, facts) is None
    assert same(finish(ending, facts), decided_in_steps(ending, facts))


def test_a_run_that_lost_its_lane_does_not_end_plainly() -> None:
    facts = running()
    late = replace(an_end(facts), fence=replace(a_fence(facts), epoch=1))
    assert isinstance(finish(late, facts).outcome, HoldfastError)


CARRIED = {
    Accept: {
        "tenant", "turn_id", "run_id", "worker", "candidate_id", "key", "session_id", "items",
        "request", "source", "on_busy", "body_hash", "retry_count", "is_compared",
        "has_streams", "limits", "reset", "seen_seq", "parent",
    },
    Finish: {
        "fence", "outcome", "items", "after_seq", "result", "usage", "shown_records",
        "hold_seconds", "successor", "journal",
    },
}  # fmt: skip
"""Fields that a plain decision carries out, checks by their values, or need not look at."""


@pytest.mark.parametrize(("kind", "options"), [(Accept, ACCEPT_OPTIONS), (Finish, FINISH_OPTIONS)])
def test_every_field_of_a_command_was_thought_of(
    kind: type[Accept | Finish], options: tuple[str, ...]
) -> None:
    assert {*options} | CARRIED[kind] == {*kind.__struct_fields__}
    assert CARRIED[kind].isdisjoint(options)
