"""The Responses API: a turn for every request, a range of a session's log for every response."""

import msgspec

from holdfast.core.compaction.token_estimate import estimate_tokens
from holdfast.core.errors import InvalidInput, NotFound, SessionMoved
from holdfast.core.model.request import read_request
from holdfast.core.openai.encrypted_reasoning import ENCRYPTED_REASONING
from holdfast.core.openai.response import ResponseFacts, write_response
from holdfast.core.transaction.commands import DropResponse
from holdfast.engine.streaming.response_records import given_then
from holdfast.http.api.relay import Relaying
from holdfast.http.api.session_items import Transcripts
from holdfast.http.request.body import read_fields
from holdfast.http.request.item_references import References
from holdfast.http.request.pagination import page, read_page
from holdfast.http.request.responses_request import ResponseRequest, read_response_request
from holdfast.http.request.session_headers import (
    SessionHeaders,
    answer_headers,
    read_session_headers,
)
from holdfast.http.request.session_target import Places
from holdfast.http.request.submit_turn import Target, TurnDesk, session_of
from holdfast.http.server.sse import EventReply
from holdfast.http.server.types import (
    JSON,
    AnyReply,
    Reply,
    Request,
    json_reply,
)
from holdfast.ports.store import ResponseView


class ResponseNotFound(NotFound):
    """No response has this id."""

    code = "response_not_found"


class ResponsesApi:
    """POST, GET and DELETE on /v1/responses."""

    def __init__(self, turns: TurnDesk, relaying: Relaying) -> None:
        self._turns = turns
        self._relaying = relaying
        self._places = Places(turns.gateway, turns.desk)
        self._transcripts = Transcripts(turns.gateway)
        self._references = References(turns.gateway.read)

    async def create(self, request: Request) -> AnyReply:
        """Take a turn in, and answer with its response, whole or as a stream."""
        wanted = read_response_request(await read_fields(request))
        dropped = self._relaying.dropped_tools(wanted.asked)
        reply = await self._create(request, wanted)
        if dropped:
            reply.headers.append((b"x-dropped-tools", ", ".join(dropped).encode("latin-1")))
        return reply

    async def _create(self, request: Request, wanted: ResponseRequest) -> AnyReply:
        headers = read_session_headers(request)
        asked = wanted.asked
        if not (asked.is_stored or headers.is_bound or wanted.is_bound):
            wanted = await self.resolved(request, wanted, Target())
            return await self._relaying.response(asked, wanted.items)
        while True:
            target = session_of(headers)
            if wanted.is_bound:
                target = await self.place(request, headers, wanted)
            items = wanted.items
            if wanted.refers:
                items = (await self.resolved(request, wanted, target)).items
            try:
                ticket = await self._turns.take(request, asked, headers, target, items)
            except SessionMoved:
                continue
            break
        if asked.is_stream:
            return self._turns.stream(ticket, request.bound)
        if asked.is_background:
            facts = await self._facts(await self._view(request, ticket.response_id))
        else:
            facts = (await self._turns.answer(request, ticket)).response
        reply = Reply(write_response(facts), headers=[JSON, *request.bound])
        reply.delivers = ticket.turn.id, ticket.step
        return reply

    async def place(
        self, request: Request, headers: SessionHeaders, wanted: ResponseRequest
    ) -> Target:
        """Return where a request goes on."""
        return await self._places.find(request.tenant, headers, wanted)

    async def resolved(
        self, request: Request, wanted: ResponseRequest, target: Target
    ) -> ResponseRequest:
        """Return the request with the items that it refers to."""
        if not wanted.refers:
            return wanted
        items = await self._references.resolve(request.tenant, wanted.items, target)
        return msgspec.structs.replace(wanted, items=items)

    async def get(self, request: Request) -> AnyReply:
        """Return a response as it is now, or its events, from the first or after a number."""
        name, asked = request.params["id"], request.query()
        view = await self._view(request, name)
        after = _starting_after(asked)
        if not _flag(asked, "stream"):
            if after is not None:
                raise InvalidInput("starting_after needs stream=true", param="starting_after")
            facts = await self._facts(view)
            if ENCRYPTED_REASONING in request.query_list("include"):
                facts = msgspec.structs.replace(facts, shows_encrypted=True)
            return Reply(write_response(facts))
        reader = self._turns.desk.reader(request.tenant, name, -1 if after is None else after)
        headers = answer_headers(view.session, view.turn.id)
        return EventReply(reader, self._turns.streams.keep_alive_seconds, headers)

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

    async def input_items(self, request: Request) -> AnyReply:
        """Return a page of what the model was given: the history it continued, then its input."""
        view = await self._view(request, request.params["id"])
        asked = read_page(request, order="desc")
        given = given_then(view)
        if given is None:
            return json_reply(page([], [], asked.limit))
        return json_reply(await self._transcripts.listed(given, asked))

    async def input_tokens(self, request: Request) -> AnyReply:
        """Return about how many tokens a request would have, its history included."""
        headers = read_session_headers(request)
        fields = await read_fields(request)
        fields.setdefault("model", msgspec.Raw(b'"any"'))
        wanted = read_response_request(fields)
        target = await self.place(request, headers, wanted)
        wanted = await self.resolved(request, wanted, target)
        items = await self._turns.history(request, target)
        bodies = [*items, *(item.body for item in wanted.items)]
        tokens = estimate_tokens(bodies, wanted.asked.fields)
        return json_reply({"object": "response.input_tokens", "input_tokens": tokens})

    async def _facts(self, view: ResponseView) -> ResponseFacts:
        return await self._turns.desk.records.facts(view)

    async def _view(self, request: Request, name: str) -> ResponseView:
        """Return what is stored under a response id."""
        view = await self._turns.desk.records.find(request.tenant, name)
        if view is None or not read_request(view.turn.request).is_stored:
            raise ResponseNotFound(f"Response with id '{name}' not found.")
        return view


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
