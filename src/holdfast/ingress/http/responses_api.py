"""The Responses API: a turn for every request, a range of a session's log for every response."""

from collections.abc import AsyncIterator

import msgspec

from holdfast.core.commands import Parent
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.items import NewItem, message, read_item
from holdfast.core.request import TurnRequest, read_request, turn_of_response
from holdfast.core.response import OUTCOME_STATUS, ResponseFacts, ResponseStatus, write_response
from holdfast.engine.desk import Ticket
from holdfast.engine.live import LiveResponse
from holdfast.ingress.http.asgi import JSON, SSE, AnyReply, Reply, Request, StreamReply
from holdfast.ingress.http.bodies import Fields, read_fields, take, take_list
from holdfast.ingress.http.session_headers import (
    SessionHeaders,
    answer_headers,
    read_session_headers,
)
from holdfast.ingress.http.turns import Target, TurnDesk, conversation_session, session_of
from holdfast.ports.store import TurnView

DONE = b"data: [DONE]\n\n"


class ResponseNotFound(NotFound):
    """No response has this id."""

    code = "response_not_found"


class ParentNotFound(InvalidInput):
    """The response to continue is unknown, foreign, deleted or failed."""

    code = "previous_response_not_found"


class ResponsesApi:
    """POST, GET on /v1/responses."""

    def __init__(self, turns: TurnDesk) -> None:
        self._turns = turns

    async def create(self, request: Request) -> AnyReply:
        """Take a turn in, and answer with its response, whole or as a stream."""
        headers = read_session_headers(request)
        fields = await read_fields(request)
        items = read_input(fields)
        asked = read_asked(fields)
        conversation = _conversation(fields)
        asked = msgspec.structs.replace(asked, is_conversation=conversation is not None)
        target = await self._target(request, headers, conversation, asked)
        ticket = await self._turns.take(request, asked, headers, target, items)
        return await self._reply(ticket, asked)

    async def _target(
        self,
        request: Request,
        headers: SessionHeaders,
        conversation: str | None,
        asked: TurnRequest,
    ) -> Target:
        if conversation is not None:
            if asked.previous_response_id is not None:
                raise InvalidInput("send conversation or previous_response_id, not both")
            return Target(session_id=conversation_session(conversation))
        if asked.previous_response_id is not None:
            return await self._behind(request, asked.previous_response_id)
        return session_of(headers)

    async def _behind(self, request: Request, name: str) -> Target:
        """Return the place behind an earlier response, waiting for one still being made."""
        found = turn_of_response(name)
        unknown = ParentNotFound(f"Previous response with id '{name}' not found.")
        view = found and await self._turns.gateway.read.turn(request.tenant, found[0])
        if not found or not view:
            raise unknown
        turn_id, step = found
        view = await self._turns.gateway.wait_until_ended(request.tenant, turn_id, step=step)
        runs = await self._turns.gateway.read.runs(turn_id)
        done = [run for run in runs if run.step == step and run.outcome == "completed"]
        if not done or not read_request(view.turn.request).is_stored:
            raise unknown
        last = done[-1]
        assert last.last_seq is not None
        return Target(session_id=last.session_id, parent=Parent(last.last_seq, last.record_no or 0))

    async def _reply(self, ticket: Ticket, asked: TurnRequest) -> AnyReply:
        headers = answer_headers(ticket.session, ticket.turn.id)
        if asked.is_stream and ticket.live is not None:
            return StreamReply(sse(ticket.live), [SSE, *headers])
        answered = await ticket.answer()
        return Reply(write_response(answered.response), headers=[JSON, *headers])

    async def get(self, request: Request) -> AnyReply:
        """Return a response as it is now."""
        facts = await self._find(request, request.params["id"])
        return Reply(write_response(facts))

    async def _find(self, request: Request, name: str) -> ResponseFacts:
        found = turn_of_response(name)
        read = self._turns.gateway.read
        view = await read.turn(request.tenant, found[0]) if found else None
        if found is None or view is None:
            raise ResponseNotFound(f"Response with id '{name}' not found.")
        asked = read_request(view.turn.request)
        session = await read.session(request.tenant, session_id=view.turn.session_id)
        if not asked.is_stored or session is None or found[1] > view.turn.step:
            raise ResponseNotFound(f"Response with id '{name}' not found.")
        runs = [run for run in await read.runs(view.turn.id) if run.step == found[1]]
        if not runs or runs[-1].outcome is None:
            return _unfinished(name, view, asked)
        return await self._turns.desk.facts_of(view.turn, runs[-1], session.session)


def _unfinished(name: str, view: TurnView, asked: TurnRequest) -> ResponseFacts:
    status: ResponseStatus
    match view.status:
        case "queued":
            status = "queued"
        case "running" | "requires_action":
            status = "in_progress"
        case _ if view.turn.outcome is not None:
            status = OUTCOME_STATUS[view.turn.outcome]
        case _:
            status = "incomplete"
    return ResponseFacts(
        id=name, request=asked, created_at=view.turn.accepted_at, status=status
    )  # fmt: skip


def read_input(fields: Fields) -> list[NewItem]:
    """Take `input` out of the body: text, or items kept as they came."""
    raw = fields.get("input")
    if raw is None:
        return []
    if bytes(raw).lstrip()[:1] == b'"':
        return [message("user", take(fields, "input", str))]
    listed = take_list(fields, "input")
    return [read_item(bytes(one)) for one in listed or ()]


def read_asked(fields: Fields) -> TurnRequest:
    """Take what concerns us out of the body; the rest stays as it came."""
    model = take(fields, "model", str)
    if not model:
        raise InvalidInput("you must provide a model parameter")
    return TurnRequest(
        api="responses",
        model=model,
        is_stored=take(fields, "store", bool, True),
        is_background=take(fields, "background", bool, False),
        is_stream=take(fields, "stream", bool, False),
        previous_response_id=take(fields, "previous_response_id", str),
        fields={k: v for k, v in fields.items() if k not in ("conversation", "input")},
    )


class _Conversation(msgspec.Struct):
    id: str


def _conversation(fields: Fields) -> str | None:
    named: str | _Conversation | None = take(fields, "conversation", str | _Conversation)
    return named.id if isinstance(named, _Conversation) else named


async def sse(live: LiveResponse, starting_after: int = -1) -> AsyncIterator[bytes]:
    """Yield a response's events as server-sent events, and the mark that ends them."""
    async for event in live.read(starting_after):
        yield b"event: %s\ndata: %s\n\n" % (event.type.encode(), event.body)
    yield DONE
