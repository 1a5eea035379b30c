"""A batch that only continues the last one equals what is decided in steps."""

from typing import Any

import pytest

from holdfast.core.decisions.append import continue_turn
from holdfast.core.transaction.commands import Appended
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.plain_turns import continue_plainly
from tests.unit.core.builders import NOW
from tests.unit.core.plain_batch_commands import OTHER_BATCHES, PLAIN_BATCHES, a_batch


@pytest.mark.parametrize(("fields", "known"), PLAIN_BATCHES)
def test_a_batch_that_continues_is_what_the_steps_come_to(
    fields: dict[str, Any], known: Appended
) -> None:
    command = a_batch(known, **fields)
    plain = continue_plainly(command, NOW)
    assert plain is not None
    facts = Facts(now=NOW, session=known.session, turn=known.turn)
    assert plain == continue_turn(command, facts)


@pytest.mark.parametrize(("fields", "known"), OTHER_BATCHES)
def test_any_other_batch_is_decided_step_by_step(
    fields: dict[str, Any], known: Appended | None
) -> None:
    assert continue_plainly(a_batch(known, **fields), NOW) is None
