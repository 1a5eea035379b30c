"""Lanes in memory: what is kept of them, what makes them uncertain, and how much they may take."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.session import Session, begin_session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    Entry,
    LogAppended,
    PartialSaved,
    QueueDropped,
    QueueSaved,
)
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.stores.cache.lane_cache import LANE_BYTES, LaneCache
from tests.unit.core.builders import a_run, a_turn

NOW = 1_000.0
KEY = Key("me")
WORKER = WorkerId("wrk_1")
OTHER = WorkerId("wrk_2")


def a_session(number: int = 1, **fields: Any) -> Session:
    made = begin_session(SessionId(f"ses_{number}"), DEFAULT_TENANT, now=NOW, key=KEY)
    return replace(made, **fields)


def made(session: Session) -> LogAppended:
    return LogAppended(session, None, (Entry(),))


def grown(session: Session, *entries: Entry, **fields: Any) -> LogAppended:
    """Return entries behind a session's log that leave it with these fields."""
    after = replace(session, version=session.version + len(entries), **fields)
    return LogAppended(after, session, entries)


def started(session: Session) -> tuple[LogAppended, Turn, Run]:
    turn = replace(a_turn(), session_id=session.id, input=None)
    run = replace(a_run(session, turn), id=RunId("run_1"), epoch=session.version + 1)
    change = grown(
        session, Entry(turn=turn, is_new_turn=True, runs=[run]), epoch=run.epoch,
        active_turn_id=turn.id, active_run_id=run.id, owner=WORKER,
    )  # fmt: skip
    return change, turn, run


def ended(session: Session, turn: Turn, run: Run) -> LogAppended:
    entry = Entry(turn=replace(turn, outcome="completed"), runs=[replace(run, outcome="completed")])
    return grown(session, entry, active_turn_id=None, active_run_id=None, owner=None)


def fence_of(run: Run) -> Fence:
    return Fence(run.session_id, run.generation, run.id, run.epoch)


def running(lanes: LaneCache) -> tuple[Session, Turn, Run]:
    """Have a session made and a run begin in it."""
    new = a_session()
    lanes.note([made(new)])
    change, turn, run = started(new)
    lanes.note([change])
    return change.session, turn, run


def test_a_session_that_was_made_here_is_known_by_its_id_and_its_key() -> None:
    lanes = LaneCache()
    session = a_session()
    lanes.note([made(session)])
    assert lanes.of_session(session.id, WORKER, NOW) == Facts(now=NOW, session=session)
    assert lanes.keys == {(DEFAULT_TENANT, KEY): session.id}


def test_a_busy_lane_is_known_to_its_owner_alone() -> None:
    lanes = LaneCache()
    session, turn, run = running(lanes)
    facts = lanes.run_by(fence_of(run), NOW)
    assert facts == Facts(now=NOW, session=session, active=turn, active_run=run)
    arrival = lanes.of_session(session.id, WORKER, NOW)
    assert arrival == Facts(
        now=NOW, session=session, active=turn, active_run=run, has_live_owner=True
    )
    assert lanes.of_session(session.id, OTHER, NOW) is None, "whether the owner lives is not known"
    assert lanes.run_by(replace(fence_of(run), epoch=run.epoch - 1), NOW) is None
    assert lanes.run_by(replace(fence_of(run), run_id=RunId("run_2")), NOW) is None


def test_what_a_run_writes_is_what_it_finds_next() -> None:
    lanes = LaneCache()
    session, turn, run = running(lanes)
    longer = replace(turn, last_seq=3)
    change = grown(session, Entry(turn=longer, runs=[run]), head_seq=3)
    lanes.note([change, PartialSaved(session.id, run.id, b"so far")])
    facts = lanes.run_by(fence_of(run), NOW)
    told = replace(run, partial=b"so far")
    assert facts == Facts(now=NOW, session=change.session, active=longer, active_run=told)


def test_the_end_of_a_run_leaves_an_idle_lane() -> None:
    lanes = LaneCache()
    change = ended(*running(lanes))
    lanes.note([change])
    idle = lanes.of_session(change.session.id, OTHER, NOW)
    assert idle == Facts(now=NOW, session=change.session)


def test_turns_that_wait_are_known_in_order_until_they_start() -> None:
    lanes = LaneCache()
    session, _, run = running(lanes)
    second = replace(a_turn(), id=TurnId("turn_2"), session_id=session.id, position=2)
    front = replace(second, id=TurnId("turn_3"), position=0)
    queued = grown(session, Entry(turn=second, is_new_turn=True), turn_count=2)
    lanes.note([queued, QueueSaved(second)])
    lanes.note([grown(queued.session, Entry(turn=front, is_new_turn=True)), QueueSaved(front)])
    facts = lanes.run_by(fence_of(run), NOW)
    assert facts is not None
    assert facts.waiting == Waiting(2, 0, 2)
    assert lanes.waiting_turn(session.id, second.id) == second
    assert facts.session is not None
    lanes.note([grown(facts.session, Entry(turn=front)), QueueDropped(front.id)])
    after = lanes.run_by(fence_of(run), NOW)
    assert after is not None
    assert after.waiting == Waiting(1, 2, 2)
    assert lanes.waiting_turn(session.id, front.id) is None


def test_a_waiting_turn_that_is_queued_again_waits_once() -> None:
    lanes = LaneCache()
    session, _, run = running(lanes)
    second = replace(a_turn(), id=TurnId("turn_2"), session_id=session.id, position=2)
    third = replace(second, id=TurnId("turn_3"), position=3)
    for turn in (second, third):
        lanes.note([QueueSaved(turn)])
    last = replace(second, position=4, request=b"longer than before")
    lanes.note([QueueSaved(last)])
    facts = lanes.run_by(fence_of(run), NOW)
    assert facts is not None
    assert facts.waiting == Waiting(2, 3, 4)
    assert lanes.waiting_turn(session.id, second.id) == last


def test_what_waiting_turns_take_is_given_back_when_they_leave() -> None:
    lanes = LaneCache()
    session, _, _ = running(lanes)
    before = lanes.held_bytes
    turns = [
        replace(
            a_turn(), id=TurnId(f"turn_{place}"), session_id=session.id, position=place,
            input=b"x" * place,
        )
        for place in (5, 6, 7)
    ]  # fmt: skip
    lanes.note([QueueSaved(turn) for turn in turns])
    known = lanes.find(session.id)
    assert known is not None
    assert known[0].waiting == tuple(turns)
    assert lanes.held_bytes - before == known[0].waiting_bytes > 0
    change = grown(session, Entry())
    lanes.note([change, *(QueueDropped(turn.id) for turn in (turns[1], turns[0], turns[2]))])
    assert lanes.held_bytes == before


@pytest.mark.parametrize("name", ["other version", "held", "retired", "unknown run"])
def test_a_lane_that_is_not_certain_is_forgotten(name: str) -> None:
    lanes = LaneCache()
    session, _, run = running(lanes)
    held = {"active_run_id": None, "owner": None, "hold_until": NOW, "pending_calls": "[]"}
    changes: dict[str, Change] = {
        "other version": grown(replace(session, version=session.version + 7), Entry()),
        "held": grown(session, Entry(), **held),
        "retired": grown(session, Entry(), is_live=False),
        "unknown run": grown(session, Entry(), active_run_id=RunId("run_2")),
    }
    lanes.note([changes[name]])
    assert lanes.run_by(fence_of(run), NOW) is None
    assert lanes.of_session(session.id, WORKER, NOW) is None
    assert not lanes.keys
    assert lanes.held_bytes == 0


def test_a_lane_that_was_read_is_kept_unless_somebody_waits_in_it() -> None:
    lanes = LaneCache()
    session = a_session()
    lanes.learn(Facts(now=NOW, session=session, waiting=Waiting(1, 1, 1)))
    assert lanes.of_session(session.id, WORKER, NOW) is None
    lanes.learn(Facts(now=NOW, session=session))
    assert lanes.of_session(session.id, WORKER, NOW) == Facts(now=NOW, session=session)


def test_what_was_noted_since_the_beginning_is_rolled_back_or_stays() -> None:
    lanes = LaneCache()
    session = a_session()
    lanes.note([made(session)])
    lanes.begin()
    change, _, run = started(session)
    lanes.note([change])
    lanes.rollback()
    assert lanes.of_session(session.id, OTHER, NOW) == Facts(now=NOW, session=session)
    lanes.begin()
    lanes.note([change])
    lanes.commit()
    lanes.rollback()
    assert lanes.run_by(fence_of(run), NOW) is not None


def test_the_lanes_that_were_used_last_are_kept_within_a_bound() -> None:
    lanes = LaneCache(max_bytes=3 * (LANE_BYTES + 2))
    sessions = [a_session(number, key=Key(f"k{number}")) for number in range(1, 6)]
    for session in sessions:
        lanes.note([made(session)])
    known = [lanes.of_session(one.id, WORKER, NOW) is not None for one in sessions]
    assert known == [False, False, True, True, True]
    assert lanes.held_bytes <= 3 * (LANE_BYTES + 2)
    lanes.clear()
    assert lanes.held_bytes == 0
