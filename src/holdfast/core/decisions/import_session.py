"""Import sessions from another store: each once, without overwriting anything in this one.

The id of an imported session is derived from its source, so a later import finds the session again.
It extends the session, or leaves it alone if it was erased, reset or continued here.
"""

import hashlib
from itertools import groupby

from msgspec.structs import replace

from holdfast.core.decisions.lifecycle import retire
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.import_rows import Imported, ImportedRun, ImportedTurn, ImportStatus, Order
from holdfast.core.model.records import Span, visible_spans
from holdfast.core.model.session import Session, Usage, begin_session
from holdfast.core.model.turn import Run, Source, Turn
from holdfast.core.transaction.changes import Change, Decision
from holdfast.core.transaction.commands import Import
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft

IMPORTER = WorkerId("import")
"""The owner of imported turns. It is not a worker, so it never expires."""


def session_id_for(tenant: Tenant, source: str, created_at: float) -> SessionId:
    """Return the stable id of a source's session in a tenant; ids sort by creation time."""
    digest = hashlib.blake2b(f"{tenant}\0{source}".encode(), digest_size=10).hexdigest()
    return SessionId(f"ses_{max(int(created_at * 1000), 0):011x}{digest}")


def take_over(command: Import, facts: Facts) -> Decision[Imported]:
    """Import a session, or the turns that its source has added since the last import."""
    decision = _take_over(command, facts)
    return Decision(decision.outcome) if command.is_dry_run else decision


def _take_over(command: Import, facts: Facts) -> Decision[Imported]:
    session = facts.session
    if session is None:
        return _add(command, facts)
    if session.tenant != command.tenant:
        return Decision(Imported(command.session_id, "taken"))
    if session.deleted_at is not None:
        return Decision(Imported(session.id, "erased"))
    if command.again and session.version == 1 and facts.imported_turns == len(command.turns):
        # An earlier attempt of this command created the session; its reply was lost.
        return Decision(Imported(session.id, _status(command, session), session.head_seq))
    return _extend(command, facts, session)


def _status(command: Import, session: Session) -> ImportStatus:
    return "added" if session.is_live or not command.is_live else "set_aside"


def _add(command: Import, facts: Facts) -> Decision[Imported]:
    is_live = command.is_live and _may_be_live(command, facts)
    draft = Draft(_begin(command, facts, is_live=is_live), now=facts.now, is_new=True)
    draft.add_event("session.created", generation=draft.session.generation)
    before: tuple[Change, ...] = ()
    if is_live and facts.live is not None:
        old = Draft(facts.live, now=facts.now)
        retire(old, reason="session_imported")
        before = old.changes()
    added = _write(draft, command, 0, ())
    fate = _status(command, draft.session)
    decision = draft.decide(Imported(command.session_id, fate, added))
    return replace(decision, changes=(*before, *decision.changes))


def _may_be_live(command: Import, facts: Facts) -> bool:
    """Whether the key is free, or held by an earlier import without later turns."""
    live = facts.live
    return live is None or (live.id in command.follows and _is_untouched(live, facts))


def _is_untouched(session: Session, facts: Facts) -> bool:
    return facts.imported_turns == session.turn_count


def _begin(command: Import, facts: Facts, *, is_live: bool) -> Session:
    key: Key | None = command.key
    session = begin_session(
        command.session_id,
        command.tenant,
        now=facts.now if command.created_at is None else command.created_at,
        key=key,
        generation=max(facts.next_generation, command.generation),
        started_by=_first_source(command),
    )
    return replace(
        session,
        is_live=is_live or key is None,
        retired_at=None if is_live or key is None else facts.now,
        previous_session_id=command.follows[-1] if command.follows else None,
        metadata=command.metadata,
    )


def _first_source(command: Import) -> Source:
    """Return the source of the first turn, or `user` if it is unknown."""
    first = command.turns[0].source if command.turns else None
    return first or "user"


def _extend(command: Import, facts: Facts, session: Session) -> Decision[Imported]:
    """Append the source's new turns, if the session is still as it was imported."""
    # Without imported turns, the export was made from this session itself: all turns are known.
    known_turns = facts.imported_turns or session.turn_count
    new = command.turns[known_turns:]
    if not _is_untouched(session, facts):
        # The session was continued here: keep it, and report whether the source changed too.
        return Decision(Imported(session.id, "differs" if new else "unchanged"))
    if facts.turn is not None:
        before = command.turns[known_turns - 1] if known_turns <= len(command.turns) else None
        is_same = before is not None and facts.turn.body_hash == _hash(before)
        if not is_same or _head_after(command, known_turns) != session.head_seq:
            return Decision(Imported(session.id, "differs"))
    if not new:
        return Decision(Imported(session.id, "unchanged"))
    draft = Draft(session, now=facts.now)
    added = _write(draft, command, known_turns, facts.hidden)
    return draft.decide(Imported(session.id, "extended", added))


def _head_after(command: Import, known_turns: int) -> int | None:
    """Return the log's length after the first turns, or None if their items continue later."""
    order = _order(command)
    at = next((at for at, (index, _) in enumerate(order) if index >= known_turns), len(order))
    if any(index < known_turns for index, _ in order[at:]):
        return None
    return sum(count for _, count in order[:at])


def _order(command: Import) -> Order:
    return command.order or tuple(
        (index, len(turn.items)) for index, turn in enumerate(command.turns) if turn.items
    )


def _write(draft: Draft, command: Import, known_turns: int, hidden: tuple[Span, ...]) -> int:
    """Append the turns after the first `known_turns`, hide hidden ranges, add one event."""
    before = draft.session.head_seq
    _write_turns(draft, command, known_turns)
    _record_user_activity(draft, command.last_user_activity_at)
    _count(draft, command.usage)
    for span in command.hidden:
        for part in visible_spans(hidden, *span):
            hidden = tuple(draft.hide("hide", part, hidden))
    added = draft.session.head_seq - before
    draft.add_event("session.imported", first_seq=before + 1, last_seq=draft.session.head_seq)
    draft.wake()
    return added


def _write_turns(draft: Draft, command: Import, known_turns: int) -> None:
    blocks: dict[int, Span] = {}
    taken = [0] * len(command.turns)
    for index, count in _order(command):
        if index >= known_turns:
            first = draft.session.head_seq + 1
            last = _append(draft, command.turns[index], index + 1, taken[index], count)
            blocks[index] = (first, last)
        taken[index] += count
    for index, turn in enumerate(command.turns[known_turns:], known_turns):
        _write_turn(draft, turn, blocks.get(index))


def _append(draft: Draft, past: ImportedTurn, number: int, start: int, count: int) -> int:
    """Append a block of a turn; items that were incomplete at the source stay incomplete."""
    last = draft.session.head_seq
    for is_partial, places in groupby(range(start, start + count), past.partial.__contains__):
        last = draft.append([past.items[at] for at in places], number, is_partial=is_partial)
    return last


def _write_turn(draft: Draft, past: ImportedTurn, block: Span | None) -> None:
    session = draft.session
    number = session.turn_count + 1
    first, last = block if block is not None else (None, None)
    at = draft.now if past.at is None else past.at
    ended_at = at if past.ended_at is None else max(at, past.ended_at)
    turn_id = past.id or _turn_id(session.id, number)
    draft.set(turn_count=number)
    if past.is_by_user:
        _record_user_activity(draft, past.at if past.accepted_at is None else past.accepted_at)
    draft.save_turn(
        Turn(
            id=turn_id,
            session_id=session.id,
            tenant=session.tenant,
            number=number,
            position=number,
            source=past.source or ("user" if past.is_by_user else "system"),
            owner=IMPORTER,
            step=past.step,
            attempts=past.attempts,
            body_hash=_hash(past),
            first_seq=first,
            kept_seq=last,
            last_seq=last,
            outcome=past.outcome,
            error_code=past.error_code,
            error_message=past.error_message,
            accepted_at=at if past.accepted_at is None else past.accepted_at,
            started_at=past.at if past.has_begun else None,
            ended_at=ended_at,
            delivered_at=ended_at,
        ),
        is_new=True,
    )
    for run in past.runs:
        _write_run(draft, turn_id, run, block)


def _write_run(draft: Draft, turn_id: TurnId, past: ImportedRun, block: Span | None) -> None:
    """Write a run of the source; new runs get higher epochs, so it cannot write any more."""
    session = draft.session
    usage = past.usage
    draft.save_run(
        Run(
            id=past.id or RunId(f"run_{_digest(session.id, f'run {past.epoch}')}"),
            turn_id=turn_id,
            session_id=session.id,
            generation=session.generation,
            epoch=past.epoch,
            worker=past.worker,
            step=past.step,
            first_seq=block[0] if block is not None else session.head_seq,
            last_seq=block[1] if block is not None else None,
            outcome=past.outcome,
            error_code=past.error_code,
            error_message=past.error_message,
            started_at=past.started_at,
            ended_at=past.ended_at,
            input_tokens=usage.input_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            output_tokens=usage.output_tokens if usage is not None else None,
            reasoning_tokens=usage.reasoning_tokens if usage is not None else None,
            heals=past.heals,
            late=past.late,
        )
    )


def _count(draft: Draft, usage: Usage | None) -> None:
    """Raise the session's usage to the source's total, which includes usage without a run."""
    if usage is not None:
        session = draft.session
        draft.set(
            input_tokens=max(session.input_tokens, usage.input_tokens),
            cached_tokens=max(session.cached_tokens, usage.cached_tokens),
            output_tokens=max(session.output_tokens, usage.output_tokens),
            reasoning_tokens=max(session.reasoning_tokens, usage.reasoning_tokens),
        )


def _record_user_activity(draft: Draft, at: float | None) -> None:
    """Record the user's last activity, which reset policies use; None changes nothing."""
    if at is not None:
        draft.set(last_user_activity_at=max(at, draft.session.last_user_activity_at or at))


def _turn_id(session_id: SessionId, number: int) -> TurnId:
    return TurnId(f"turn_{_digest(session_id, str(number))}")


def _digest(session_id: SessionId, name: str) -> str:
    return hashlib.blake2b(f"{session_id}\0{name}".encode(), digest_size=15).hexdigest()


def _hash(past: ImportedTurn) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for item in past.items:
        digest.update(item.fingerprint + b"\0")
    return digest.digest()
