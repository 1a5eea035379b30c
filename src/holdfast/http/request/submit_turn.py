"""From a request to a turn at the desk: what the Responses and Chat APIs have in common."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    LaneFull,
    NotFound,
    SessionBusy,
    SessionMoved,
    SessionNotFound,
)
from holdfast.core.history.history_hash import NO_TRAIL, PrefixHash, TrailRow
from holdfast.core.ids import Key, RunId, SessionId, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Source
from holdfast.core.projection.project import project
from holdfast.core.transaction.commands import Accept, Brought, Parent
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.response_records import shown_records
from holdfast.engine.turns.executor import TurnResult
from holdfast.engine.turns.input_matching import (
    MatchedInput,
    has_no_history,
    match_input,
    match_stored_history,
)
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.http.request.session_headers import SessionHeaders, answer_headers
from holdfast.http.server.sse import EventReply, Tell, event_texts
from holdfast.http.server.types import Header, LongReply, Request

RECOGNITION_TRIES = 16


class ConversationNotFound(NotFound):
    """No conversation has this id."""

    code = "conversation_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Conversation with id '{name}' not found.")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The session a turn goes to: a key's, a named one, behind an answer, or a new one."""

    key: Key | None = None
    session_id: SessionId | None = None
    parent: Parent | None = None
    after_turn: int | None = None
    """The turn, by its number, that this one comes right behind, in its lane."""
    conversation: str | None = None
    """What the client calls the session, where it takes it for a conversation."""


class TurnDesk:
    """Hands turns of HTTP requests in."""

    def __init__(
        self,
        gateway: Gateway,
        desk: TurnService,
        reset: ResetPolicy = NEVER,
        streams: StreamSettings | None = None,
    ) -> None:
        self.gateway = gateway
        self.desk = desk
        self.streams = streams or StreamSettings()
        self._reset = reset

    async def take(
        self,
        request: Request,
        asked: TurnRequest,
        headers: SessionHeaders,
        target: Target,
        items: Sequence[NewItem],
    ) -> TurnTicket:
        """Accept the turn and set it going; what the log has already is not stored twice."""
        storage, is_new = self.gateway.storage, _is_new(headers, target, items)
        for _ in range(RECOGNITION_TRIES):
            if is_new:
                found = MatchedInput(tuple(items))
            else:
                found = await self._recognise(request, headers, target, items)
            if found.trail or target.after_turn is not None:
                waits = target.after_turn is not None
                asked = replace(asked, waits_for_parent=waits, trail=found.trail)
            accept = self._accept(request, asked, headers, target, found)
            if storage.is_bounded:
                limits = await storage.limits(request.tenant, accept.limits)
                accept = replace(accept, limits=limits)
            try:
                is_live = asked.is_stream or asked.is_background
                ticket = await self.desk.accept(accept, asked, is_live=is_live)
            except HoldfastError as exc:
                await self._look_into(exc, request, target, found)
                continue
            if storage.is_bounded:
                storage.note(request.tenant, sum(len(item.body) for item in found.items))
            request.bound = answer_headers(ticket.session, ticket.turn.id)
            return ticket
        raise SessionBusy("the session keeps moving; try again")

    async def _look_into(
        self, refusal: HoldfastError, request: Request, target: Target, found: MatchedInput
    ) -> None:
        """Raise what the client is to be told; return where asking again may go better."""
        match refusal:
            case SessionBusy() | LaneFull():
                await self._name_session(request, target)
            case SessionMoved() if target.after_turn is None:
                return
            case SessionNotFound() if found.repeated is not None:
                return
            case SessionNotFound() if target.conversation is not None:
                raise ConversationNotFound(target.conversation) from refusal
        raise refusal

    async def _name_session(self, request: Request, target: Target) -> None:
        """Have a refusal say which session it speaks of; there is no turn to name."""
        session = await self.known_session(request, target)
        if session is not None:
            request.bound = answer_headers(session)

    async def _recognise(
        self,
        request: Request,
        headers: SessionHeaders,
        target: Target,
        items: Sequence[NewItem],
    ) -> MatchedInput:
        """Compare with the session that is named by header, or look for the history elsewhere."""
        if not headers.is_bound:
            return await match_stored_history(self.gateway.read, request.tenant, items)
        return await match_input(
            self.gateway.read,
            request.tenant,
            items,
            key=target.key,
            session_id=target.session_id,
            is_whole=headers.sends_everything,
        )

    def _accept(
        self,
        request: Request,
        asked: TurnRequest,
        headers: SessionHeaders,
        target: Target,
        found: MatchedInput,
    ) -> Accept:
        gateway, new_id = self.gateway, self.gateway.ids.new
        if found.repeated is not None:
            target = _behind(found.repeated)
        source: Source = "background" if asked.is_background else "user"
        accept = Accept(
            tenant=request.tenant,
            turn_id=TurnId(new_id("turn")),
            run_id=RunId(new_id("run")),
            worker=gateway.worker.id,
            candidate_id=SessionId(new_id("ses")),
            key=target.key,
            session_id=target.session_id,
            items=found.items,
            request=write_request(asked),
            source="internal" if headers.is_internal else source,
            on_busy=headers.on_busy or gateway.settings.on_busy,
            is_internal=headers.is_internal,
            idempotency_key=headers.idempotency_key,
            body_hash=hash_request(request),
            retry_count=headers.retry_count,
        )
        # In two steps: with more than fifteen names, Python makes a dictionary for a call.
        return replace(
            accept,
            rewind=found.rewind,
            seen_seq=found.seen_seq,
            parent=target.parent,
            after_turn=found.after_turn if target.after_turn is None else target.after_turn,
            same_as=found.same_as,
            brought=self._brought(found.brought, found.trail) if found.brought else None,
            limits=gateway.limits,
            reset=self._reset,
        )

    def _brought(self, stone: PrefixHash, trail: bytes) -> Brought:
        """Return the history that comes with a request, to be found by others if it may be."""
        turn_id = TurnId(self.gateway.ids.new("turn"))
        return Brought(turn_id, stone.count, stone.trail if trail else NO_TRAIL)

    async def history(self, request: Request, target: Target) -> list[bytes]:
        """Return what a model would be shown before a turn's own input."""
        session = await self.known_session(request, target)
        return [] if session is None else project(await self.gateway.read.context(session))

    async def known_session(self, request: Request, target: Target) -> Session | None:
        """Return the session that a turn would go on in, as it reads there; None: a new one."""
        if target.session_id is None and target.key is None:
            return None
        view = await self.gateway.read.session(
            request.tenant, session_id=target.session_id, key=target.key
        )
        if view is None:
            if target.key is None:
                raise SessionNotFound(f"no session {target.session_id}")
            return None
        if target.parent is None:
            return view.session
        return shown_records(view.session, target.parent.seq, target.parent.record_no)

    def stream(
        self, ticket: TurnTicket, headers: Iterable[Header], tell: Tell = event_texts
    ) -> LongReply:
        """Return a stream of a turn; what its client's leaving means is a setting."""
        seconds = self.streams.keep_alive_seconds
        reply = EventReply(ticket.reader(), seconds, headers, tell=tell)
        reply.delivers = ticket.turn.id, ticket.step
        is_kept = self.streams.on_disconnect == "complete" or ticket.turn.source != "user"
        if not is_kept:
            reply.on_left = ticket.abandon
        return reply

    def answer(self, request: Request, ticket: TurnTicket) -> Awaitable[TurnResult]:
        """Return a turn's answer to a client that waits for it."""
        if self.streams.on_disconnect == "complete":
            return ticket.answer()
        return self._answer_or_abandon(request, ticket)

    async def _answer_or_abandon(self, request: Request, ticket: TurnTicket) -> TurnResult:
        answering = asyncio.ensure_future(ticket.answer())
        left = asyncio.ensure_future(request.until_left())
        try:
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await ticket.abandon()
            return await answering
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)


def _behind(end: TrailRow) -> Target:
    return Target(session_id=end.session_id, parent=Parent(end.seq, end.record_no))


def _is_new(headers: SessionHeaders, target: Target, items: Sequence[NewItem]) -> bool:
    """Whether a request is known to repeat nothing, without a look at what is stored."""
    if headers.is_internal or target.parent is not None:
        return True
    if headers.key is None and headers.session_id is None:
        return target.session_id is not None
    return not headers.sends_everything and has_no_history(items)


async def body_hash(request: Request) -> bytes:
    """Return what makes two requests the same: path, session headers, raw body."""
    await request.body()
    return hash_request(request)


def hash_request(request: Request) -> bytes:
    """Return the same for a request whose body has been read."""
    sent = request.by_name
    hashed = (
        request.path.encode(),
        sent.get(b"x-session-key", b""),
        sent.get(b"x-openclaw-session-key", b""),
        sent.get(b"x-session-id", b""),
        request.content,
    )
    return blake2b(b"\0".join(hashed), digest_size=16).digest()


def conversation_session(name: str) -> SessionId:
    """Return the session that a conversation id names."""
    if "\0" in name:
        raise ConversationNotFound(name)
    if name.startswith("conv_"):
        return SessionId("ses_" + name.removeprefix("conv_"))
    if name.startswith("ses_"):
        return SessionId(name)
    raise ConversationNotFound(name)


def session_of(headers: SessionHeaders) -> Target:
    """Return the target that the headers alone name."""
    return Target(key=headers.key, session_id=headers.session_id)
