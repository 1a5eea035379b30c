"""What a batch writes that is decided on from memory: few texts, one order, no row twice."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.items import message, read_item
from holdfast.core.model.session import begin_session
from holdfast.core.transaction.commands import Accept, Append, Command, Deliver, Finish
from holdfast.stores.cache.lane_cache import Lane, Lanes
from holdfast.stores.postgres.optimistic_batch import Foreseen, foresee_all
from holdfast.stores.sql import statements as sql

NOW = 1_000.0
WORKER = WorkerId("wrk_1")


def idle(*names: str) -> Lanes:
    """Return idle lanes of sessions, each with a key of the same name."""
    lanes = Lanes()
    lanes.keep(
        Lane(begin_session(SessionId(f"ses_{name}"), DEFAULT_TENANT, now=NOW, key=Key(name)))
        for name in names
    )
    return lanes


def append(key: str, name: str) -> Append:
    return Append(
        tenant=DEFAULT_TENANT, turn_id=TurnId(f"turn_{name}"), worker=WORKER,
        candidate_id=SessionId("ses_new"), key=Key(key), items=(message("user", name),),
    )  # fmt: skip


def accept(key: str, name: str) -> Accept:
    return Accept(
        tenant=DEFAULT_TENANT, turn_id=TurnId(f"turn_{name}"), run_id=RunId(f"run_{name}"),
        worker=WORKER, candidate_id=SessionId("ses_new"), key=Key(key),
        items=(message("user", name),),
    )  # fmt: skip


def foreseen(lanes: Lanes, *commands: Command[Any]) -> Foreseen:
    found = foresee_all(commands, NOW, lanes)
    assert found is not None
    return found


def outcomes(found: Foreseen) -> list[Any]:
    return [decision.outcome for decision in found.decisions]


def finish(lanes: Lanes, key: str, name: str) -> Finish:
    """Have a run begun, and return the command that ends it."""
    (begun,) = outcomes(foreseen(lanes, accept(key, name)))
    return Finish(fence=begun.fence, outcome="completed", items=())


def test_the_same_batch_in_any_order_is_one_text_with_its_sessions_in_order() -> None:
    def batch(order: int) -> Foreseen:
        lanes = idle("a", "b", "c")
        ended = finish(lanes, "b", "0")
        commands = [append("c", "1"), Deliver(steps=((TurnId("turn_x"), 0),)), ended,
                    append("a", "2")]  # fmt: skip
        return foreseen(lanes, *commands[::order])

    first, second = batch(1).writes, batch(-1).writes
    assert list(first) == list(second)
    assert list(first)[:2] == [sql.SAVE_LANE, sql.SAVE_LOG], "sessions are locked first"
    assert [one[-2] for one in first[sql.SAVE_LOG]] == ["ses_a", "ses_c"]
    assert first[sql.SAVE_LOG] == second[sql.SAVE_LOG]


def test_commands_about_one_session_follow_each_other_and_write_its_row_once() -> None:
    lanes = idle("a", "b")
    before = lanes.idle(SessionId("ses_a"), NOW)
    assert before is not None
    assert before.session is not None
    found = foreseen(lanes, append("a", "1"), append("b", "2"), append("a", "3"), accept("a", "4"))
    answers = outcomes(found)
    assert [one.turn.number for one in answers] == [1, 1, 2, 3]
    # The last one changes most of the row; the fence is the first one's.
    (saved,) = found.writes[sql.SAVE_LANE]
    assert saved[-2:] == ("ses_a", before.session.version)
    assert saved[0] == answers[3].session.version == before.session.version + 3
    assert [one[-2] for one in found.writes[sql.SAVE_LOG]] == ["ses_b"]
    assert sorted(row[:2] for row in found.writes[sql.ADD_PLAIN_ITEM.statement]) == [
        ("ses_a", 1), ("ses_a", 2), ("ses_a", 3), ("ses_b", 1),
    ]  # fmt: skip


def test_rows_that_are_written_twice_cannot_be_written_at_once() -> None:
    lanes = idle("a", "b")
    ended = finish(lanes, "a", "0")
    assert foresee_all([ended, append("a", "1")], NOW, lanes) is None, "the row of a run changes"
    assert foresee_all([append("b", "1"), append("b", "1")], NOW, lanes) is None, "one turn, twice"
    turn = TurnId("turn_0")
    assert foresee_all([Deliver(steps=((turn, 0),)), ended], NOW, lanes) is None


def test_a_batch_that_cannot_be_foreseen_leaves_the_lanes_as_they_were() -> None:
    lanes = idle("a", "b")
    assert foresee_all([append("a", "1"), append("unknown", "2")], NOW, lanes) is None
    (appended,) = outcomes(foreseen(lanes, append("a", "3")))
    assert appended.turn.number == 1


def test_items_that_are_worded_in_two_ways_are_added_at_once() -> None:
    lanes = idle("a")
    call = b'{"type":"function_call","call_id":"call_1","name":"f","arguments":"{}"}'
    ended = replace(finish(lanes, "a", "1"), items=(message("assistant", "so"), read_item(call)))
    names = [statement.name for statement in foreseen(lanes, ended).writes]
    assert {"add_plain_item", "add_item"} < set(names)
