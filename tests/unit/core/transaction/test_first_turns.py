"""The plain first turn of a session equals what is decided step by step."""

from typing import Any

import pytest

from holdfast.core.decisions.accept import accept, accept_any
from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import Queued, Started
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.plain_turns import start_first_turn
from tests.unit.core.builders import NOW, a_turn, an_accept
from tests.unit.core.first_turns import OTHER_FIRSTS, PLAIN_FIRSTS
from tests.unit.core.plain_commands import same


@pytest.mark.parametrize("fields", PLAIN_FIRSTS)
@pytest.mark.parametrize("generation", [1, 4])
@pytest.mark.parametrize("key", [{}, {"key": None}])
def test_a_plain_first_turn_is_what_the_steps_come_to(
    fields: dict[str, Any], generation: int, key: dict[str, Any]
) -> None:
    command = an_accept(**(fields | key))
    facts = Facts(now=NOW, next_generation=generation)
    plain = start_first_turn(command, generation, NOW)
    assert plain is not None
    assert isinstance(plain.outcome, Started)
    assert accept(command, facts) == plain == accept_any(command, facts)


@pytest.mark.parametrize("fields", OTHER_FIRSTS)
def test_any_other_first_turn_is_decided_step_by_step(fields: dict[str, Any]) -> None:
    command, facts = an_accept(**fields), Facts(now=NOW)
    assert start_first_turn(command, 1, NOW) is None
    decision = accept(command, facts)
    assert isinstance(decision.outcome, Started | Queued | HoldfastError)
    assert same(decision, accept_any(command, facts))


def test_a_turn_that_is_found_again_begins_no_session() -> None:
    command = an_accept(retry_count=1)
    facts = Facts(now=NOW, turn=a_turn())
    assert same(accept(command, facts), accept_any(command, facts))
