"""The Responses API: each request is a turn, each response a range of a session's log."""

import msgspec

from holdfast.core.compaction.token_estimate import estimate_tokens
from holdfast.core.errors import InvalidInput, NotFound, SessionMoved
from holdfast.core.model.request import read_request, response_id
from holdfast.core.openai.response import ENCRYPTED_REASONING, ResponseFacts, write_response
from holdfast.core.transaction.commands import DropResponse
from holdfast.http.api.relay import RelayService
from holdfast.http.api.session_items import SessionItems
from holdfast.http.request.body import check_content_type
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.item_references import ReferenceResolver
from holdfast.http.request.pagination import page, read_flag, read_page
from holdfast.http.request.responses_request import (
    ResponseRequest,
    parse_response_request,
    read_plain_response,
)
from holdfast.http.request.session_headers import (
    SessionHeaders,
    check_expectable,
    name_session,
    read_session_headers,
)
from holdfast.http.request.session_target import TargetResolver
from holdfast.http.request.submit_turn import SessionTarget, TurnSubmitter, target_from_headers
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
    """Everything under /v1/responses except compaction."""

    def __init__(self, turns: TurnSubmitter, relay: RelayService, decoder: BodyDecoder) -> None:
        self._turns = turns
        self.decoder = decoder
        self._relay = relay
        self._targets = TargetResolver(turns.gateway, turns.turn_service)
        self._items = SessionItems(turns.gateway)
        self._references = ReferenceResolver(turns.gateway.read)

    async def create(self, request: Request) -> AnyReply:
        """Run a turn and return its response, whole or streamed."""
        headers = read_session_headers(request)
        check_content_type(request)
        parsed = read_plain_response(await request.body())
        if parsed is None:
            fields, items = await self.decoder.responses(request)
            parsed = parse_response_request(fields, items)
        has_tools = "tools" in parsed.turn_request.fields
        dropped = self._relay.dropped_tools(parsed.turn_request) if has_tools else ()
        reply = await self._create(request, headers, parsed)
        if dropped:
            reply.headers.append((b"x-dropped-tools", ", ".join(dropped).encode("latin-1")))
        return reply

    async def _create(
        self, request: Request, headers: SessionHeaders, parsed: ResponseRequest
    ) -> AnyReply:
        turn_request = parsed.turn_request
        if not (turn_request.is_stored or headers.is_bound or parsed.conversation is not None):
            check_expectable(headers)
            target = SessionTarget()
            if parsed.is_bound:
                target = await self.target(request, headers, parsed)
            parsed = await self.resolve_references(request, parsed, target)
            items = await self._turns.with_history(request, target, parsed.items)
            return await self._relay.response(request, turn_request, items)
        while True:
            target = target_from_headers(headers)
            if parsed.is_bound:
                target = await self.target(request, headers, parsed)
            items = parsed.items
            if parsed.has_references:
                items = (await self.resolve_references(request, parsed, target)).items
            try:
                ticket = await self._turns.submit(request, turn_request, headers, target, items)
            except SessionMoved:
                continue
            break
        # The log has the items: do not hold a large input in memory while the model answers.
        parsed.items.clear()
        del items
        if turn_request.is_stream:
            return self._turns.stream(request, ticket)
        if turn_request.is_background:
            facts = await self._facts(await self._view(request, ticket.response_id))
        else:
            client = request if self._turns.cancels_on_disconnect else None
            facts = (await ticket.answer(client)).response
        reply = Reply(write_response(facts), headers=[JSON, *request.session_headers])
        reply.delivers = ticket.turn.id, ticket.step
        return reply

    async def target(
        self, request: Request, headers: SessionHeaders, parsed: ResponseRequest
    ) -> SessionTarget:
        """Return the session that a request continues."""
        return await self._targets.resolve(request.tenant, headers, parsed)

    async def resolve_references(
        self, request: Request, parsed: ResponseRequest, target: SessionTarget
    ) -> ResponseRequest:
        """Return the request with its item references replaced by items."""
        if not parsed.has_references:
            return parsed
        items = await self._references.resolve(request.tenant, parsed.items, target)
        return msgspec.structs.replace(parsed, items=items)

    async def get(self, request: Request) -> AnyReply:
        """Return a response, or its events from the start or after a sequence number."""
        name, query = request.params["id"], request.query()
        view = await self._named(request)
        after = _starting_after(query)
        if not read_flag(query, "stream"):
            if after is not None:
                raise InvalidInput("starting_after needs stream=true", param="starting_after")
            facts = await self._facts(view)
            if ENCRYPTED_REASONING in request.query_list("include"):
                facts = msgspec.structs.replace(facts, shows_encrypted=True)
            return Reply(write_response(facts))
        first = -1 if after is None else after
        reader = self._turns.turn_service.reader(request.tenant, name, first)
        return EventReply(reader, self._turns.streams.keep_alive_seconds)

    async def cancel(self, request: Request) -> AnyReply:
        """Cancel a background response; do nothing if it has ended."""
        view = await self._named(request)
        if not read_request(view.turn.request).is_background:
            raise InvalidInput("Only responses created with background=true can be cancelled.")
        facts = await self._facts(view)
        if facts.status in ("queued", "in_progress"):
            await self._turns.turn_service.cancel((view.joined or view).turn)
            facts = await self._facts(await self._view(request, facts.id))
        return Reply(write_response(facts))

    async def delete(self, request: Request) -> AnyReply:
        """Delete a response; the session's history stays unchanged."""
        view = await self._named(request)
        await self._turns.gateway.submit(
            DropResponse(tenant=request.tenant, turn_id=view.turn.id, step=view.step)
        )
        return json_reply({"id": request.params["id"], "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> AnyReply:
        """Return a page of a response's input: the history it continued, then its own items."""
        view = await self._named(request)
        page_request = read_page(request, order="desc")
        session = await self._turns.turn_service.records.given(view)
        if session is None:
            return json_reply(page([], [], page_request.limit))
        return json_reply(await self._items.page(session, page_request))

    async def input_tokens(self, request: Request) -> AnyReply:
        """Estimate the number of input tokens of a request, with its history."""
        headers = read_session_headers(request)
        fields, items = await self.decoder.responses(request)
        fields.setdefault("model", msgspec.Raw(b'"any"'))
        parsed = parse_response_request(fields, items)
        target = await self.target(request, headers, parsed)
        parsed = await self.resolve_references(request, parsed, target)
        history = await self._turns.history(request, target)
        bodies = [*history, *(item.body for item in parsed.items)]
        tokens = estimate_tokens(bodies, parsed.turn_request.fields)
        return json_reply({"object": "response.input_tokens", "input_tokens": tokens})

    async def _facts(self, view: ResponseView) -> ResponseFacts:
        facts = await self._turns.turn_service.records.kept_facts(view)
        if facts is None:
            raise _not_found(response_id(view.turn.id, view.step))
        return facts

    async def _named(self, request: Request) -> ResponseView:
        """Return the stored response that the path names; the answer names its turn."""
        view = await self._view(request, request.params["id"])
        name_session(request, view.session, view.turn.id)
        return view

    async def _view(self, request: Request, name: str) -> ResponseView:
        """Return the stored response with this id."""
        view = await self._turns.turn_service.records.find(request.tenant, name)
        if view is None or not read_request(view.turn.request).is_stored:
            raise _not_found(name)
        return view


def _not_found(name: str) -> ResponseNotFound:
    return ResponseNotFound(f"Response with id '{name}' not found.")


def _starting_after(query: dict[str, str]) -> int | None:
    raw = query.get("starting_after")
    if raw is None:
        return None
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 10):
        raise InvalidInput("starting_after must be a sequence number", param="starting_after")
    return int(raw)
