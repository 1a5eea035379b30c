"""How a turn is written down when it comes in: to wait, to run, or complete as it is."""

from msgspec.structs import replace

from holdfast.core.decisions.lane import tail_position
from holdfast.core.model.session import Session
from holdfast.core.model.turn import BLANK_TURN, Source, Turn
from holdfast.core.transaction.changes import IdempotencyAdded, IdempotencyRow
from holdfast.core.transaction.commands import Accept, Append, Brought
from holdfast.core.transaction.facts import Waiting
from holdfast.core.transaction.session_draft import Draft


def new_turn(command: Accept | Append, session: Session, position: int, now: float) -> Turn:
    """Return the turn that an arrival becomes; what it brings is in the log, or packed to wait."""
    rewind, request = None, b""
    if isinstance(command, Accept):
        rewind, request = command.rewind, command.request
    if rewind is not None and rewind[1] > session.head_seq:
        rewind = None  # It speaks of another generation's log: this one never was that long.
    return replace(
        BLANK_TURN,
        id=command.turn_id,
        session_id=session.id,
        tenant=session.tenant,
        number=session.turn_count + 1,
        position=position,
        source=command.source,
        owner=command.worker,
        request=request,
        body_hash=command.body_hash,
        rewind_after=rewind[0] if rewind else None,
        rewind_upto=rewind[1] if rewind else None,
        accepted_at=now,
    )


def remember(command: Accept | Append, draft: Draft, turn: Turn) -> None:
    """Bind the caller's idempotency key to the turn, in the commit that makes it durable."""
    if command.idempotency_key is None:
        return
    row = IdempotencyRow(
        turn.tenant, command.idempotency_key, command.body_hash or b"", turn.id, turn.step,
        draft.now,
    )  # fmt: skip
    draft.add(IdempotencyAdded(row))


def add_completed(command: Accept | Append, draft: Draft, *, source: Source) -> Turn:
    """Write items at the head as a turn that has nothing left to do."""
    session = draft.session
    position = tail_position(session.turn_count, Waiting())
    turn = new_turn(command, session, position, draft.now)
    first = draft.head_seq + 1
    last = draft.append(command.items, turn.number)
    draft.set(turn_count=turn.number)
    turn = replace(
        turn,
        source=source,
        request=b"",
        body_hash=command.body_hash if isinstance(command, Append) else None,
        first_seq=first,
        kept_seq=last,
        last_seq=last,
        outcome="completed",
        started_at=draft.now,
        ended_at=draft.now,
    )
    draft.add_turn(turn)
    draft.tell("items.appended", turn, first_seq=first, last_seq=last)
    return turn


def bring(command: Accept, draft: Draft, brought: Brought) -> Accept:
    """Write the history that a client brings as a turn that is complete; return what is new.

    So whoever comes while the new part runs finds that history in the log, and repeats none of it.
    """
    history = replace(command, turn_id=brought.turn_id, items=command.items[: brought.count])
    add_completed(history, draft, source="system")
    draft.leave_trail(brought.trail)
    return replace(command, items=command.items[brought.count :])
