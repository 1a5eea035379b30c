"""The Responses API: a turn for every request, a range of a session's log for every response."""

import msgspec

from holdfast.core.commands import DropResponse, Parent
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.items import NewItem, message, read_item
from holdfast.core.request import TurnRequest, read_request
from holdfast.core.response import ResponseFacts, write_response
from holdfast.engine.desk import Ticket
from holdfast.ingress.http.asgi import (
    JSON,
    SSE,
    AnyReply,
    Reply,
    Request,
    StreamReply,
    json_reply,
)
from holdfast.ingress.http.bodies import Fields, read_fields, take, take_list
from holdfast.ingress.http.session_headers import (
    SessionHeaders,
    answer_headers,
    read_session_headers,
)
from holdfast.ingress.http.sse import sse
from holdfast.ingress.http.turns import Target, TurnDesk, conversation_session, session_of
from holdfast.ports.store import ResponseView


class ResponseNotFound(NotFound):
    """No response has this id."""

    code = "response_not_found"


class ParentNotFound(InvalidInput):
    """The response to continue is unknown, foreign, deleted or failed."""

    code = "previous_response_not_found"


class ResponsesApi:
    """POST, GET and DELETE on /v1/responses."""

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
        return await self._reply(request, ticket, asked)

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
        recorded = self._turns.desk.recorded
        view = await recorded.find(request.tenant, name)
        if view is not None and view.turn.outcome is None and view.turn.step == view.step:
            await self._turns.gateway.wait_until_ended(request.tenant, view.turn.id, step=view.step)
            view = await recorded.find(request.tenant, name)
        if view is None or not _can_be_continued(view):
            raise ParentNotFound(
                f"Previous response with id '{name}' not found.", param="previous_response_id"
            )
        run = view.run
        assert run is not None
        assert run.last_seq is not None
        return Target(session_id=run.session_id, parent=Parent(run.last_seq, run.record_no or 0))

    async def _reply(self, request: Request, ticket: Ticket, asked: TurnRequest) -> AnyReply:
        headers = answer_headers(ticket.session, ticket.turn.id)
        if asked.is_stream:
            chunks = sse(ticket.reader(), self._turns.streams.keep_alive_seconds)
            return self._turns.stream(ticket, chunks, [SSE, *headers])
        if asked.is_background:
            facts = await self._facts(await self._view(request, ticket.response_id))
        else:
            facts = (await self._turns.answer(request, ticket)).response
        reply = Reply(write_response(facts), headers=[JSON, *headers])
        return self._turns.noting(ticket, reply)

    async def get(self, request: Request) -> AnyReply:
        """Return a response as it is now, or its events, from the first or after a number."""
        name, asked = request.params["id"], request.query()
        view = await self._view(request, name)
        after = _starting_after(asked)
        if not _flag(asked, "stream"):
            if after is not None:
                raise InvalidInput("starting_after needs stream=true", param="starting_after")
            return Reply(write_response(await self._facts(view)))
        reader = self._turns.desk.reader(request.tenant, name, -1 if after is None else after)
        chunks = sse(reader, self._turns.streams.keep_alive_seconds)
        return StreamReply(chunks, [SSE, *answer_headers(view.session, view.turn.id)])

    async def cancel(self, request: Request) -> AnyReply:
        """End a background response that has not ended; one that has stays as it is."""
        view = await self._view(request, request.params["id"])
        if not read_request(view.turn.request).is_background:
            raise InvalidInput("Only responses created with background=true can be cancelled.")
        facts = await self._facts(view)
        if facts.status in ("queued", "in_progress"):
            await self._turns.desk.cancel(view.turn)
            facts = await self._facts(await self._view(request, facts.id))
        return Reply(write_response(facts))

    async def delete(self, request: Request) -> AnyReply:
        """Take a response out of reach; the session's history stays as it is."""
        view = await self._view(request, request.params["id"])
        await self._turns.gateway.submit(
            DropResponse(tenant=request.tenant, turn_id=view.turn.id, step=view.step)
        )
        return json_reply({"id": request.params["id"], "object": "response", "deleted": True})

    async def _facts(self, view: ResponseView) -> ResponseFacts:
        return await self._turns.desk.recorded.facts(view)

    async def _view(self, request: Request, name: str) -> ResponseView:
        """Return what is stored under a response id."""
        view = await self._turns.desk.recorded.find(request.tenant, name)
        if view is None or not read_request(view.turn.request).is_stored:
            raise ResponseNotFound(f"Response with id '{name}' not found.")
        return view


def _can_be_continued(view: ResponseView) -> bool:
    """Whether a turn may go on behind a response: one that was stored, and neither failed nor
    was cancelled. What broke off may be continued, as far as it went."""
    run = view.run
    if run is None or run.last_seq is None or not read_request(view.turn.request).is_stored:
        return False
    return run.outcome == "completed" or (
        run.outcome == "interrupted" and view.turn.outcome == "interrupted"
    )


def _flag(asked: dict[str, str], name: str) -> bool:
    raw = asked.get(name, "false").lower()
    if raw not in ("true", "false", "1", "0"):
        raise InvalidInput(f"{name} is true or false, not {raw!r}", param=name)
    return raw in ("true", "1")


def _starting_after(asked: dict[str, str]) -> int | None:
    raw = asked.get("starting_after")
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 10):
        raise InvalidInput("starting_after is a sequence number", param="starting_after")
    return int(raw)


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
        raise InvalidInput("you must provide a model parameter", param="model")
    is_stored = take(fields, "store", bool, True)
    is_background = take(fields, "background", bool, False)
    if is_background and not is_stored:
        raise InvalidInput("background responses must be stored", param="background")
    return TurnRequest(
        api="responses",
        model=model,
        is_stored=is_stored,
        is_background=is_background,
        is_stream=take(fields, "stream", bool, False),
        previous_response_id=take(fields, "previous_response_id", str),
        fields={k: v for k, v in fields.items() if k not in ("conversation", "input")},
    )


class _Conversation(msgspec.Struct):
    id: str


def _conversation(fields: Fields) -> str | None:
    named: str | _Conversation | None = take(fields, "conversation", str | _Conversation)
    return named.id if isinstance(named, _Conversation) else named
