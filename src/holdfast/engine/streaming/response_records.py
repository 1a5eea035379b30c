"""What is recorded of a response: its facts, the items it was given, the events it was told in."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.lane import unpack_items
from holdfast.core.ids import Tenant
from holdfast.core.model.request import (
    TurnRequest,
    conversation_id,
    read_request,
    response_id,
    turn_of_response,
)
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.event_batches import unpack_events
from holdfast.core.openai.response import (
    ResponseFacts,
    decode_answer,
    error_value,
    status_of,
)
from holdfast.core.openai.stream_events import StreamEvent, recall
from holdfast.core.transaction.commands import Parent
from holdfast.ports.store import ItemQuery, Reader, ResponseView

JOURNAL_BATCHES = 64
"""Batches of a journal that are read at once."""


class ResponseRecords:
    """The reading side of responses."""

    def __init__(self, read: Reader) -> None:
        self._read = read

    async def find(self, tenant: Tenant, name: str) -> ResponseView | None:
        """Return what a response id names; a foreign, deleted or unknown one is `None`."""
        named = turn_of_response(name)
        view = await self._read.response(tenant, *named) if named else None
        return view if view is not None and view.turn.request else None

    async def facts(self, view: ResponseView) -> ResponseFacts:
        """Return a response as it is in the record."""
        turn, run = view.turn, view.run
        status = status_of(turn, run, view.turn_status, view.step)
        output = await self._output(view.session, run) if run is not None else []
        request = read_request(turn.request)
        return ResponseFacts(
            id=response_id(turn.id, view.step),
            request=request,
            created_at=turn.accepted_at,
            status=status,
            output=output,
            answer=decode_answer(run.result) if run is not None and run.result else None,
            conversation_id=conversation_of(view.session, request),
            error=_error(turn, run) if status == "failed" else None,
        )

    async def _output(self, session: Session, run: Run) -> Sequence[bytes]:
        if run.outcome is None:
            return [_under_way(item.body) for item in unpack_items(run.partial)]
        if run.last_seq is None or run.last_seq < run.first_seq:
            return []
        count = run.last_seq - run.first_seq + 1
        query = ItemQuery(after=run.first_seq - 1, limit=count, view="log")
        return [item.body for item in await self._read.items(session, query)]

    async def events(
        self, view: ResponseView, facts: ResponseFacts, after: int
    ) -> list[StreamEvent]:
        """Return what the journal has after a number, a bounded part of it."""
        rows = await self._read.journal(view.turn.id, view.step, after=after, limit=JOURNAL_BATCHES)
        found: list[StreamEvent] = []
        for row in rows:
            kept = unpack_events(row)
            for number, event in enumerate(kept, row.first_no):
                if number > after:
                    found.append(recall(event, number, facts))
        return found

    async def has_journal(self, view: ResponseView) -> bool:
        """Whether anything of the stream was kept."""
        return bool(await self._read.journal(view.turn.id, view.step, after=-1, limit=1))


def given_then(view: ResponseView) -> Session | None:
    """Return the session as it was when the response was begun: what its model was given."""
    run = view.run
    if run is None:
        return None
    records = view.session.record_no if run.record_no is None else run.record_no
    return shown_records(view.session, run.first_seq - 1, records)


def parent_of(view: ResponseView) -> Parent | None:
    """Return where a response ended, if a turn may go on there.

    It must have been stored, and neither failed nor been cancelled. What broke off may be
    continued, as far as it went.
    """
    run = view.run
    if run is None or run.last_seq is None or not read_request(view.turn.request).is_stored:
        return None
    is_torn = run.outcome == "interrupted" and view.turn.outcome == "interrupted"
    if run.outcome != "completed" and not is_torn:
        return None
    return Parent(run.last_seq, run.record_no or 0)


def shown_records(session: Session, seq: int, record_no: int) -> Session:
    """Return a session as it read when its log ended at `seq`, under the records of then."""
    return replace(session, head_seq=seq, record_no=record_no, hidden_count=1)


def conversation_of(session: Session, request: TurnRequest) -> str | None:
    """Return the name that the Conversations API has for a response's session, if it was used."""
    return conversation_id(session.id) if request.is_conversation else None


def _under_way(body: bytes) -> bytes:
    """Return an item that is kept in case of a crash as what it is while there is none."""
    item = msgspec.json.decode(body)
    if item.get("status") == "incomplete":
        item["status"] = "in_progress"
    return msgspec.json.encode(item)


def _error(turn: Turn, run: Run | None) -> dict[str, msgspec.Raw | str]:
    code, message = turn.error_code, turn.error_message
    if run is not None and run.outcome == "failed":
        code, message = run.error_code, run.error_message
    return error_value(code, message)
