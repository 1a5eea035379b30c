"""Lanes in memory: what is kept of them, what makes them uncertain, and how much they may take."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.session import Session, begin_session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    EventAdded,
    ItemsAdded,
    RunAdded,
    RunSaved,
    SessionAdded,
    SessionSaved,
    TurnAdded,
    TurnSaved,
)
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.stores.cache.lane_cache import LANE_BYTES, Lanes
from tests.unit.core.scenes import a_run, a_turn

NOW = 1_000.0
SESSION = SessionId("ses_1")
KEY = Key("me")


def a_session(number: int = 1, **fields: Any) -> Session:
    made = begin_session(SessionId(f"ses_{number}"), DEFAULT_TENANT, now=NOW, key=KEY)
    return replace(made, **fields)


def started(session: Session) -> tuple[Session, Turn, Run]:
    """Return the session as a run begins in it, with its turn and its run."""
    turn = replace(a_turn(), session_id=session.id)
    run = replace(a_run(session, turn), id=RunId("run_1"), epoch=session.epoch + 1)
    lane = {"active_turn_id": turn.id, "active_run_id": run.id, "owner": WorkerId("wrk_1")}
    changed = replace(session, version=session.version + 1, epoch=run.epoch, **lane)
    return changed, turn, run


def freed(session: Session) -> Session:
    lane = {"active_turn_id": None, "active_run_id": None, "owner": None}
    return replace(session, version=session.version + 1, **lane)


def fence_of(run: Run) -> Fence:
    return Fence(run.session_id, run.generation, run.id, run.epoch)


def running(lanes: Lanes) -> tuple[Session, Turn, Run]:
    """Have a session made and a run begin in it."""
    new = a_session()
    lanes.note([SessionAdded(new)])
    session, turn, run = started(new)
    lanes.note([SessionSaved(session, new.version), TurnAdded(turn), RunAdded(run)])
    return session, turn, run


def test_a_session_that_was_made_here_is_known_by_its_id_and_its_key() -> None:
    lanes = Lanes()
    session = a_session()
    lanes.note([SessionAdded(session)])
    assert lanes.idle(session.id, NOW) == Facts(now=NOW, session=session)
    assert lanes.idle_of_key(DEFAULT_TENANT, KEY, NOW) == Facts(now=NOW, session=session)
    assert lanes.idle_of_key(DEFAULT_TENANT, None, NOW) is None


def test_a_run_finds_its_own_lane_and_nobody_else_does() -> None:
    lanes = Lanes()
    session, turn, run = running(lanes)
    facts = lanes.run_by(fence_of(run), NOW)
    assert facts == Facts(now=NOW, session=session, active=turn, active_run=run)
    assert lanes.idle(SESSION, NOW) is None, "whether its owner lives has to be read"
    assert lanes.run_by(replace(fence_of(run), epoch=run.epoch - 1), NOW) is None
    assert lanes.run_by(replace(fence_of(run), run_id=RunId("run_2")), NOW) is None


def test_what_a_run_writes_is_what_it_finds_next() -> None:
    lanes = Lanes()
    session, turn, run = running(lanes)
    later = replace(session, version=session.version + 1, head_seq=3)
    grown, told = replace(turn, last_seq=3), replace(run, partial=b"so far")
    lanes.note([SessionSaved(later, session.version), TurnSaved(grown), RunSaved(told)])
    facts = lanes.run_by(fence_of(run), NOW)
    assert facts == Facts(now=NOW, session=later, active=grown, active_run=told)


def test_the_end_of_a_run_leaves_an_idle_lane() -> None:
    lanes = Lanes()
    session, turn, run = running(lanes)
    after = freed(session)
    lanes.note([
        SessionSaved(after, session.version), RunSaved(replace(run, outcome="completed")),
        TurnSaved(replace(turn, outcome="completed")),
    ])  # fmt: skip
    assert lanes.idle(SESSION, NOW) == Facts(now=NOW, session=after)
    assert lanes.run_by(fence_of(run), NOW) is None


def _saved(session: Session, read_version: int, *more: Change) -> list[Change]:
    return [SessionSaved(session, read_version), *more]


@pytest.mark.parametrize(
    "name",
    ["queued", "left open", "other version", "held", "retired", "unknown", "other session", "two"],
)
def test_a_lane_that_is_not_certain_is_forgotten(name: str) -> None:
    lanes = Lanes()
    session, turn, run = running(lanes)
    later = replace(session, version=session.version + 1)
    ended = TurnSaved(replace(turn, outcome="completed"))
    waiting = replace(turn, id=TurnId("turn_2"))
    held = {"active_run_id": None, "owner": None, "hold_until": NOW, "pending_calls": "[]"}
    elsewhere = replace(waiting, session_id=SessionId("ses_9"), outcome="completed")
    other = replace(later, active_turn_id=waiting.id, active_run_id=RunId("run_2"))
    changes: dict[str, list[Change]] = {
        "queued": _saved(later, session.version, TurnAdded(waiting)),
        "left open": _saved(freed(session), session.version),
        "other version": _saved(later, session.version + 7),
        "held": _saved(replace(later, **held), session.version),
        "retired": _saved(replace(freed(session), is_live=False), session.version, ended),
        "unknown": _saved(other, session.version, ended),
        "other session": _saved(later, session.version, TurnSaved(elsewhere)),
        "two": [*_saved(later, session.version), SessionAdded(a_session(2, key=None))],
    }
    lanes.note(changes[name])
    assert lanes.run_by(fence_of(run), NOW) is None
    assert lanes.idle(SESSION, NOW) is None
    assert lanes.idle_of_key(DEFAULT_TENANT, KEY, NOW) is None
    assert lanes.held_bytes == 0


def test_a_turn_or_a_run_that_is_written_alone_makes_its_lane_uncertain() -> None:
    for change in (TurnSaved(a_turn()), RunSaved(a_run(a_session(), a_turn()))):
        lanes = Lanes()
        session = a_session()
        lanes.note([SessionAdded(session)])
        row = change.turn if isinstance(change, TurnSaved) else change.run
        lanes.note([type(change)(replace(row, session_id=session.id))])  # type: ignore[arg-type]
        assert lanes.idle(SESSION, NOW) is None


def test_what_is_no_lanes_business_is_passed_over() -> None:
    lanes = Lanes()
    session = a_session()
    lanes.note([SessionAdded(session)])
    lanes.note([])
    lanes.note([ItemsAdded(())])
    lanes.note([EventAdded(None)])  # type: ignore[arg-type]
    assert lanes.idle(SESSION, NOW) is not None


def test_marks_on_a_turn_make_its_lane_uncertain() -> None:
    lanes = Lanes()
    _, turn, run = running(lanes)
    lanes.forget_turns([TurnId("turn_other")])
    assert lanes.run_by(fence_of(run), NOW) is not None
    lanes.forget_turns([turn.id])
    assert lanes.run_by(fence_of(run), NOW) is None


def test_a_lane_that_was_read_is_kept_if_nobody_waits_in_it() -> None:
    session, turn, run = started(a_session())
    whole = Facts(now=NOW, session=session, active=turn, active_run=run)
    for facts, is_kept in (
        (whole, True),
        (replace(whole, waiting=Waiting(1, 2, 2)), False),
        (replace(whole, active_run=None), False),
        (replace(whole, session=replace(session, is_live=False)), False),
        (Facts(now=NOW), False),
    ):
        lanes = Lanes()
        lanes.learn(facts)
        assert (lanes.run_by(fence_of(run), NOW) is not None) == is_kept


def test_the_lanes_that_were_used_last_are_kept_within_a_bound() -> None:
    lanes = Lanes(max_bytes=3 * (LANE_BYTES + 100))
    for number in (1, 2, 3, 4, 2, 5):
        named = replace(a_session(number), key=Key(f"k{number}"), metadata=b"x" * 50)
        lanes.note([SessionAdded(named)])
        assert lanes.held_bytes <= 3 * (LANE_BYTES + 100)
    known = [n for n in range(1, 6) if lanes.idle(SessionId(f"ses_{n}"), NOW) is not None]
    assert known == [2, 4, 5]
    assert lanes.idle_of_key(DEFAULT_TENANT, Key("k1"), NOW) is None
    lanes.note([SessionAdded(replace(a_session(9), metadata=b"x" * 10_000))])
    assert lanes.held_bytes == 0, "what is too much by itself is not kept"
    lanes.clear()
    assert lanes.idle(SessionId("ses_5"), NOW) is None


# ── what is uncertain until it is committed ─────────────────────────────────────────────────


def known(lanes: Lanes) -> Session | None:
    facts = lanes.idle(SESSION, NOW)
    return facts.session if facts is not None else None


def grown(session: Session) -> Session:
    return replace(session, version=session.version + 1)


def test_what_is_taken_back_was_never_noted() -> None:
    lanes, before = Lanes(), a_session()
    lanes.note([SessionAdded(before)])
    lanes.begin()
    lanes.note([SessionSaved(grown(before), before.version)])
    lanes.note([SessionSaved(grown(grown(before)), before.version + 1)])
    other = replace(a_session(2), key=Key("other"))
    lanes.note([SessionAdded(other)])
    lanes.take_back()
    assert known(lanes) == before
    assert lanes.idle(other.id, NOW) is None
    assert lanes.held_bytes == LANE_BYTES + len(before.metadata)


def test_what_is_set_aside_is_not_known_until_it_is_kept() -> None:
    lanes, before = Lanes(), a_session()
    beside = replace(a_session(2), key=Key("other"))
    lanes.note([SessionAdded(before)])
    lanes.note([SessionAdded(beside)])
    lanes.begin()
    lanes.note([SessionSaved(grown(before), before.version)])
    aside = lanes.set_aside()
    assert known(lanes) is None
    assert lanes.idle(beside.id, NOW) is not None, "nothing was noted of it"
    lanes.keep(aside)
    assert known(lanes) == grown(before)
    lanes.begin()
    assert lanes.set_aside() == [], "what was kept is certain"
