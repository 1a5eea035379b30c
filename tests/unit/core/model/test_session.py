"""A session's status is what its lane says."""

from tests.unit.core.builders import NOW, a_session, held, running


def test_an_idle_session_is_idle() -> None:
    assert a_session().status(has_live_owner=False) == "idle"


def test_a_session_is_running_only_with_an_active_turn_and_a_living_owner() -> None:
    session = running().session
    assert session is not None
    assert session.status(has_live_owner=True) == "running"
    assert session.status(has_live_owner=False) == "idle"


def test_a_session_held_for_tools_is_running_without_an_owner() -> None:
    session = held().session
    assert session is not None
    assert session.is_held
    assert session.status(has_live_owner=False) == "running"


def test_a_session_that_is_not_live_is_retired_whatever_its_lane() -> None:
    assert a_session(is_live=False, retired_at=NOW).status(has_live_owner=True) == "retired"


def test_only_visible_items_are_counted() -> None:
    assert a_session(head_seq=7, hidden_count=3).item_count == 4


def test_an_earlier_state_says_whether_records_came_since() -> None:
    now = a_session(head_seq=7, record_no=2, hidden_count=0)
    assert not now.has_later_records
    assert not now.as_of(5, 2).has_later_records
    assert now.as_of(5, 1).has_later_records
    assert now.as_of(5, 1).as_of(3, 1).has_later_records
    assert (now.as_of(5, 1).head_seq, now.as_of(5, 1).record_no) == (5, 1)
