"""What many commands write together: few texts, one order, nothing twice."""

from holdfast.core.changes import Decision, SessionSaved
from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.session import begin_session
from holdfast.stores.postgres.lockstep import gather
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.commands import Planned
from holdfast.stores.sql.plan import Ask


def planned(name: str, *more: Ask) -> Planned:
    session = begin_session(SessionId(name), DEFAULT_TENANT, now=0.0)
    decision = Decision[None](None, (SessionSaved(session, 1),))
    return Planned(decision, [(sql.SAVE_LANE, (name,)), *more])


BEGUN = planned("ses_b", (sql.ADD_TURN, ("turn_b",)), (sql.ADD_RUN, ("run_b",)))
ENDED = planned("ses_a", (sql.SAVE_RUN, ("run_a",)), (sql.END_TURN, ("turn_a",)))
MARKED = Planned(Decision(None), [(sql.MARK_DELIVERED, ("turn_c",))])


def test_the_same_batch_in_any_order_is_one_text_with_its_sessions_in_order() -> None:
    first, second = gather([BEGUN, MARKED, ENDED]), gather([ENDED, BEGUN, MARKED])
    assert first is not None
    assert second is not None
    assert list(first.items()) == list(second.items())
    assert first[sql.SAVE_LANE] == [("ses_a",), ("ses_b",)]


def test_rows_that_are_written_twice_cannot_be_written_at_once() -> None:
    twice = planned("ses_c", (sql.END_TURN, ("turn_c",)), (sql.SAVE_BLOCK, ("turn_c",)))
    assert gather([BEGUN, twice]) is None
