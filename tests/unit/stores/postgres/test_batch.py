"""Which commands of a batch go side by side."""

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.turn import Fence
from holdfast.core.transaction.commands import (
    ApprovePairing,
    Command,
    CountBotTurn,
    DeadLetterUpdate,
    DeleteSchedule,
    Extend,
    ForgetBotTurns,
    MarkDelivered,
    NoteReceiver,
    PauseSchedule,
    QueueFacts,
    QueueMessages,
    RememberChat,
    Renew,
    RequestPairing,
    Reserve,
    Reset,
    RevokePairing,
)
from holdfast.stores.postgres.batch import waves
from holdfast.stores.postgres.row_locks import Locked, Name, lock_keys

_NOTHING = Locked([], 0.0)


class _Row(tuple[object, ...]):
    """A row as the lock statement returns it."""


def _locked(**sessions: str) -> Locked:
    rows = [_Row(("key", DEFAULT_TENANT, key, found, 0.0)) for key, found in sessions.items()]
    return Locked(rows, 0.0)  # type: ignore[arg-type] # a tuple reads like a record


def _extend(session_id: str) -> Extend:
    return Extend(fence=Fence(SessionId(session_id), 1, RunId("run_1"), 1))


def _reserve(key: str) -> Reserve:
    return Reserve(tenant=DEFAULT_TENANT, candidate_id=SessionId("ses_new"), key=Key(key))


def test_commands_about_different_sessions_go_side_by_side() -> None:
    assert waves([_extend("a"), _extend("b"), _extend("c")], _NOTHING) == [[0, 1, 2]]


def test_commands_about_one_session_go_one_after_the_other_in_their_order() -> None:
    batch = [_extend("a"), _extend("b"), _extend("a"), _extend("a"), _extend("b")]
    assert waves(batch, _NOTHING) == [[0, 1], [2, 4], [3]]


def test_a_session_is_the_same_by_whatever_name() -> None:
    batch: list[Command[object]] = [_reserve("k"), _extend("ses_1"), _reserve("l")]
    assert waves(batch, _locked(k="ses_1")) == [[0, 2], [1]]


def test_a_key_that_has_no_session_yet_is_made_once() -> None:
    assert waves([_reserve("k"), _reserve("k"), _reserve("l")], _NOTHING) == [[0, 2], [1]]


def test_within_a_wave_the_order_does_not_depend_on_arrival() -> None:
    there = waves([_reserve("b"), _reserve("a"), _reserve("c")], _NOTHING)
    assert there == [[1, 0, 2]]


def test_a_worker_is_a_thing_too() -> None:
    renew = Renew(worker=WorkerId("wrk_1"), lease_seconds=1)
    assert waves([renew, renew, _extend("a")], _NOTHING) == [[2, 0], [1]]


def test_a_reset_names_the_session_and_its_rival() -> None:
    command = Reset(tenant=DEFAULT_TENANT, session_id=SessionId("ses_1"), new_id=SessionId("ses_2"))
    assert lock_keys(command) == [Name("session", "ses_1"), Name("rival", "ses_1")]


def test_deliveries_name_their_turns() -> None:
    command = MarkDelivered(steps=((TurnId("turn_1"), 0), (TurnId("turn_2"), 1)))
    assert lock_keys(command) == [Name("turn", "turn_1"), Name("turn", "turn_2")]


ONE_AT_A_TIME = {
    QueueMessages, RequestPairing, ApprovePairing, RevokePairing, RememberChat, DeadLetterUpdate,
    CountBotTurn, ForgetBotTurns, NoteReceiver,
    PauseSchedule, DeleteSchedule, QueueFacts,
}  # fmt: skip
"""Rare commands about no session: they name their kind, so that two never go side by side."""


def test_every_command_names_something() -> None:
    """A command that names nothing might go beside one that it should have waited for."""
    for kind in Command.__subclasses__():
        fields = set(kind.__struct_fields__)
        known = {"fence", "session_id", "turn_id", "key", "steps", "worker", "id"}
        if kind in ONE_AT_A_TIME:
            continue
        assert fields & known, f"{kind.__name__} is about nothing that locking knows"


def test_queued_messages_go_one_at_a_time() -> None:
    command = QueueMessages(tenant=DEFAULT_TENANT, record_id="rec_1", messages=())
    assert lock_keys(command) == [Name("any", "QueueMessages")]
