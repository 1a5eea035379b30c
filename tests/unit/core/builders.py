"""Build the input of decisions: a session, a turn, a run and their facts."""

from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.decisions.lane import new_run, pack_items
from holdfast.core.errors import HoldfastError
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import NewItem, StoredItem, message
from holdfast.core.model.session import Session, begin_session
from holdfast.core.model.turn import Fence, Run, Turn
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept, LaneLimits
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.core.transaction.session_draft import Draft
from tests.written_rows import EventAdded, ItemsAdded, rows_of

NOW = 1_700_000_000.0
TENANT = Tenant("acme")
KEY = Key("agent:main:direct:michael")
SESSION = SessionId("ses_1")
TURN = TurnId("turn_1")
RUN = RunId("run_1")
WORKER = WorkerId("wrk_1")
OTHER_WORKER = WorkerId("wrk_2")

ChangeT = TypeVar("ChangeT")
OutcomeT = TypeVar("OutcomeT")
ErrorT = TypeVar("ErrorT", bound=HoldfastError)


def a_session(**fields: Any) -> Session:
    """Return a live, idle session with a key; `fields` override the defaults."""
    # Epochs are entry numbers, so a log has at least as many entries.
    session = begin_session(SESSION, TENANT, now=NOW - 100, key=KEY)
    return replace(session, **({"version": fields.get("epoch", 1)} | fields))


def a_turn(**fields: Any) -> Turn:
    """Return an open turn that has not started."""
    turn = Turn(
        id=TURN, session_id=SESSION, tenant=TENANT, number=1, position=1, source="user",
        owner=WORKER, step=0, attempts=0, input=pack_items([message("user", "hi")]),
        request=b"", body_hash=b"body", rewind_after=None, rewind_upto=None, first_seq=None,
        kept_seq=None, last_seq=None, outcome=None, error_code=None, error_message=None,
        is_retryable=False, accepted_at=NOW - 50, started_at=None, ended_at=None,
        delivered_at=None, retry_claim=0,
    )  # fmt: skip
    return replace(turn, **fields)


def a_started_turn(**fields: Any) -> Turn:
    """Return a turn whose one input item is in the log, and whose first attempt is running."""
    started: dict[str, Any] = {
        "input": None, "attempts": 1, "first_seq": 1, "kept_seq": 1, "last_seq": 1,
        "started_at": NOW - 40,
    }  # fmt: skip
    return a_turn(**(started | fields))


def a_run(session: Session, turn: Turn, **fields: Any) -> Run:
    """Return the run of `turn` under the session's epoch."""
    draft = Draft(session, now=NOW - 40)
    run = new_run(session.active_run_id or RUN, turn, epoch=session.epoch, draft=draft)
    return replace(run, **fields)


def running(active: Turn | None = None, **fields: Any) -> Facts:
    """Return facts of a session in which a live worker runs `active`."""
    turn = active or a_started_turn()
    lane: dict[str, Any] = {
        "active_turn_id": turn.id, "active_run_id": RUN, "owner": turn.owner, "epoch": 2,
        "head_seq": turn.last_seq or 0, "turn_count": max(turn.number, 1),
    }  # fmt: skip
    session = a_session(**(lane | fields.pop("session", {})))
    run = a_run(session, turn, **fields.pop("run_fields", {}))
    known: dict[str, Any] = {
        "session": session, "active": turn, "active_run": run, "has_live_owner": True,
    }  # fmt: skip
    return Facts(now=NOW, **(known | fields))


def held(active: Turn | None = None, *, until: float = NOW + 60, **fields: Any) -> Facts:
    """Return facts of a session whose lane waits for the output of `call_1`."""
    turn = active or a_started_turn(kept_seq=2, last_seq=2)
    session = {
        "active_run_id": None, "owner": None, "hold_until": until, "pending_calls": '["call_1"]',
    }  # fmt: skip
    return running(
        turn, session=session | fields.pop("session", {}), active_run=None,
        has_live_owner=False, **fields,
    )  # fmt: skip


def idle(**fields: Any) -> Facts:
    """Return facts of an idle session."""
    return Facts(now=NOW, session=a_session(**fields.pop("session", {})), **fields)


def waiting(*positions: int) -> Waiting:
    """Return a queue with turns at these positions."""
    return Waiting(len(positions), min(positions), max(positions))


def an_accept(text: str = "hello", **fields: Any) -> Accept:
    """Return an arrival under the key."""
    accept = Accept(
        tenant=TENANT, turn_id=TurnId("turn_new"), run_id=RunId("run_new"), worker=WORKER,
        candidate_id=SessionId("ses_new"), key=KEY, items=(message("user", text),),
        body_hash=b"body",
    )  # fmt: skip
    return replace(accept, **fields)


def a_fence(facts: Facts) -> Fence:
    """Return the fence that the active run of `facts` holds."""
    session = facts.session
    assert session is not None
    return Fence(session.id, session.generation, session.active_run_id or RUN, session.epoch)


def stored(
    seq: int, item: NewItem, *, turn_number: int = 1, is_partial: bool = False
) -> StoredItem:
    """Return `item` as it is stored in the log."""
    return StoredItem(
        SESSION, seq, turn_number, item.kind, item.item_id, item.call_id, item.fingerprint,
        is_partial, item.body,
    )  # fmt: skip


def answer(decision: Decision[Any], kind: type[OutcomeT]) -> OutcomeT:
    """Return the outcome, which must be of this type."""
    assert isinstance(decision.outcome, kind), decision.outcome
    return decision.outcome


def refusal(decision: Decision[Any], kind: type[ErrorT]) -> ErrorT:
    """Return the error of a decision that writes nothing."""
    assert isinstance(decision.outcome, kind), decision.outcome
    assert decision.changes == ()
    return decision.outcome


def written(decision: Decision[Any], kind: type[ChangeT]) -> list[ChangeT]:
    """Return the changes of one kind, in order."""
    return [change for change in rows_of(decision.changes) if isinstance(change, kind)]


def only(decision: Decision[Any], kind: type[ChangeT]) -> ChangeT:
    """Return the one change of a kind."""
    (change,) = written(decision, kind)
    return change


def told(decision: Decision[Any]) -> list[str]:
    """Return the kinds of the events that a decision writes."""
    return [change.event.kind for change in written(decision, EventAdded)]


def appended(decision: Decision[Any]) -> list[StoredItem]:
    """Return the items that a decision adds to logs."""
    return [item for change in written(decision, ItemsAdded) for item in change.items]


LIMITS = LaneLimits(can_run_again=True)
