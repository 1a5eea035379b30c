"""How much of a session's history models have answered, and how its last turn ended.

It is read only after a failure, to find the input that a provider may refuse.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.response import RecordedAnswer, decode_answer
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.store import Reader

TURNS_READ = 500
"""How many turns of a session are searched for the last answer."""
_PAGE = 20


class AnsweredInput(msgspec.Struct):
    """What is known about the turns before a call."""

    upto: int = 0
    """The last item that a model has answered, with its answer; 0 if there is none."""
    last_error: str | None = None
    """The code with which the last turn failed, or None if it did not fail."""


async def read_answered(
    read: Reader, run: ActiveRun, history: Sequence[StoredItem]
) -> AnsweredInput:
    """Return what is known about the turns before a run's model call.

    An answer that is hidden does not count, and neither does a text that was appended or delivered.
    """
    found = AnsweredInput()
    sent = [call.last_seq for call in run.earlier if call.last_seq is not None]
    if sent:
        found.upto = max(sent)
        return found
    ends: dict[SessionId, int] = {}
    for item in history:
        session_id = SessionId(item.session_id)
        ends[session_id] = max(ends.get(session_id, 0), item.seq)
    for session_id in sorted(ends, key=lambda name: ends[name], reverse=True):
        await _search(read, session_id, run, history, found)
        if found.upto:
            break
    return found


async def _search(
    read: Reader,
    session_id: SessionId,
    run: ActiveRun,
    history: Sequence[StoredItem],
    found: AnsweredInput,
) -> None:
    """Search the turns of one session, newest first."""
    own = [item for item in history if item.session_id == session_id]
    before, count = 0, 0
    while count < TURNS_READ:
        page = await read.turns(session_id, after=before, limit=_PAGE, order="desc")
        for view in page:
            turn = view.turn
            if turn.number == run.turn.number - 1 and session_id == run.session.id:
                found.last_error = turn.error_code if turn.outcome == "failed" else None
            if turn.first_seq is None or turn.first_seq > own[-1].seq:
                continue
            for each in reversed(await read.runs(turn.id)):
                if each.id != run.fence.run_id:
                    found.upto = max(found.upto, _answered_upto(turn, each, own))
        if found.upto or len(page) < _PAGE:
            return
        before, count = page[-1].turn.number, count + len(page)


def _answered_upto(turn: Turn, run: Run, items: Sequence[StoredItem]) -> int:
    """Return the last item that the models of a run have answered, or 0."""
    recorded = decode_answer(run.result) if run.result else None
    if recorded is None or recorded.sent is None:
        return 0  # it was appended or delivered, or it failed before a model was called
    if run.outcome == "completed":
        return _visible_end(run, items)
    return _steps_end(turn, recorded, items)


def _visible_end(run: Run, items: Sequence[StoredItem]) -> int:
    """Return the end of a run's answer, or 0 if nothing of it is shown, also in no summary."""
    first, last = run.first_seq, run.last_seq or 0
    is_shown = any(
        first <= item.seq <= last or (not item.turn_number and item.seq >= last) for item in items
    )
    return last if is_shown else 0


def _steps_end(turn: Turn, recorded: RecordedAnswer, items: Sequence[StoredItem]) -> int:
    """Return the last item that was sent before the last answer with calls of gateway tools."""
    sent = max((call.last_seq or 0 for call in recorded.earlier), default=0)
    is_shown = any(item.turn_number == turn.number and item.seq > sent for item in items)
    return sent if is_shown else 0
