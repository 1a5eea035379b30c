"""What is recorded of a response: its facts, its output, and the events of its journal."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.lane import unpack_items
from holdfast.core.ids import Tenant
from holdfast.core.model.gateway_items import client_output, is_user_message
from holdfast.core.model.request import (
    TurnRequest,
    conversation_id,
    find_request,
    read_request,
    response_id,
    turn_of_response,
)
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.openai.response import (
    ResponseFacts,
    answer_of,
    error_value,
    status_of,
)
from holdfast.core.openai.stream_events import StreamEvent, restore_event, unpack_events
from holdfast.core.transaction.commands import Parent
from holdfast.ports.store import ItemQuery, Reader, ResponseView

JOURNAL_BATCHES = 64
"""How many batches of a journal are read at once."""


class ResponseRecords:
    """Reads recorded responses."""

    def __init__(self, read: Reader) -> None:
        self._read = read

    async def find(self, tenant: Tenant, name: str) -> ResponseView | None:
        """Return the response of an id, or None for a foreign, deleted or unknown one."""
        turn_and_step = turn_of_response(name)
        if turn_and_step is None:
            return None
        view = await self._read.response(tenant, *turn_and_step)
        if view is None or find_request(view.turn.request) is None:
            return None
        return await self._with_joined(tenant, view)

    async def _with_joined(self, tenant: Tenant, view: ResponseView) -> ResponseView | None:
        """Return a response with that of the turn it joined, or None if that one is gone."""
        first, joined = view.turn.merged_into, view
        if first is None:
            return view
        while (name := joined.turn.merged_into) is not None:
            turn = await self._read.turn(tenant, name)
            found = await self._read.response(tenant, name, turn.turn.step) if turn else None
            if found is None:
                return None
            joined = found
        return replace(view, joined=joined)

    async def kept_facts(self, view: ResponseView) -> ResponseFacts | None:
        """Return the recorded facts, or None if their session was erased since `view` was read."""
        facts, owner = await self.facts(view), view.session
        is_read = facts.output or facts.status in ("queued", "in_progress")
        if is_read or await self._read.find_session(owner.tenant, session_id=owner.id) is not None:
            return facts
        return None

    async def facts(self, view: ResponseView) -> ResponseFacts:
        """Return the recorded facts of a response."""
        if view.joined is not None:
            return _named(await self.facts(view.joined), view)
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
            answer=answer_of(run) if run is not None else None,
            conversation_id=conversation_of(view.session, request),
            error=_error(turn, run) if status == "failed" else None,
        )

    async def _output(self, session: Session, run: Run) -> Sequence[bytes]:
        if run.outcome is None:
            return [_as_in_progress(item.body) for item in unpack_items(run.partial)]
        if run.last_seq is None or run.last_seq < run.first_seq:
            return []
        count = run.last_seq - run.first_seq + 1
        query = ItemQuery(after=run.first_seq - 1, limit=count, view="log", turn_id=run.turn_id)
        return client_output([item.body for item in await self._read.items(session, query)])

    async def events(
        self, view: ResponseView, facts: ResponseFacts, after: int
    ) -> list[StreamEvent]:
        """Return a bounded number of journal events after a number."""
        rows = await self._read.journal(view.turn.id, view.step, after=after, limit=JOURNAL_BATCHES)
        events: list[StreamEvent] = []
        for row in rows:
            for number, event in enumerate(unpack_events(row), row.first_no):
                if number > after:
                    events.append(restore_event(event, number, facts))
        return events

    async def has_journal(self, view: ResponseView) -> bool:
        """Whether the stream has a journal."""
        return bool(await self._read.journal(view.turn.id, view.step, after=-1, limit=1))

    async def given(self, view: ResponseView) -> Session | None:
        """Return the session as its model saw it when the response began."""
        run = view.run if view.joined is None else view.joined.run
        if run is None:
            return None
        records = view.session.record_no if run.record_no is None else run.record_no
        last = run.first_seq - 1
        if view.joined is not None:
            last = await self._last_input(view.session, run) or last
        return view.session.as_of(last, records)

    async def _last_input(self, session: Session, run: Run) -> int | None:
        """Return the sequence number of the last message that joined a run."""
        query = ItemQuery(after=run.first_seq - 1, view="log", turn_id=run.turn_id)
        items = await self._read.items(session, query)
        return max((item.seq for item in items if is_user_message(item.body)), default=None)


def _named(facts: ResponseFacts, view: ResponseView) -> ResponseFacts:
    """Return an answer under the id and request of another turn."""
    request = read_request(view.turn.request)
    return replace(
        facts,
        id=response_id(view.turn.id, view.step),
        request=request,
        created_at=view.turn.accepted_at,
        conversation_id=conversation_of(view.session, request),
    )


def parent_of(view: ResponseView) -> Parent | None:
    """Return the end of a response, or None if a turn cannot continue from it.

    It must be stored, and neither failed nor cancelled. An interrupted one can be continued from
    where it stopped.
    """
    run, turn = view.run, view.turn
    if view.joined is not None:
        run, turn = view.joined.run, view.joined.turn
    if run is None or run.last_seq is None or not read_request(view.turn.request).is_stored:
        return None
    is_interrupted = run.outcome == "interrupted" and turn.outcome == "interrupted"
    if run.outcome != "completed" and not is_interrupted:
        return None
    return Parent(run.last_seq, run.record_no or 0)


def conversation_of(session: Session, request: TurnRequest) -> str | None:
    """Return the conversation id of a response's session, if the request named a conversation."""
    return conversation_id(session.id) if request.is_conversation else None


def _as_in_progress(body: bytes) -> bytes:
    """Return a checkpointed item as in progress; it is stored as incomplete in case of a crash."""
    item = msgspec.json.decode(body)
    if item.get("status") == "incomplete":
        item["status"] = "in_progress"
    return msgspec.json.encode(item)


def _error(turn: Turn, run: Run | None) -> dict[str, msgspec.Raw | str]:
    code, message = turn.error_code, turn.error_message
    if run is not None and run.outcome == "failed":
        code, message = run.error_code, run.error_message
    return error_value(code, message)
