"""Submit a request as a turn: shared by the Responses and Chat APIs."""

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
from holdfast.core.history.history_hash import EMPTY_HISTORY, HistoryHashRow, PrefixHash
from holdfast.core.ids import Key, RunId, SessionId, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Source
from holdfast.core.projection.project import project
from holdfast.core.transaction.commands import Accept, ImportedPrefix, Parent
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
from holdfast.http.server.sse import EventEncoder, EventReply, encode_events
from holdfast.http.server.types import Header, Request, StreamingReply

MAX_MATCH_ATTEMPTS = 16
INLINE_HASH_BYTES = 1024 * 1024


class ConversationNotFound(NotFound):
    """No conversation has this id."""

    code = "conversation_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Conversation with id '{name}' not matched.")


class SessionTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a turn: by key, by id, after a parent response, or a new one."""

    key: Key | None = None
    session_id: SessionId | None = None
    parent: Parent | None = None
    after_turn: int | None = None
    """The number of the turn that this one must directly follow in the lane."""
    conversation: str | None = None
    """The conversation id that the client sent, if it named the session by one."""


class TurnSubmitter:
    """Submit the turns of HTTP requests."""

    def __init__(
        self,
        gateway: Gateway,
        turn_service: TurnService,
        reset: ResetPolicy = NEVER,
        streams: StreamSettings | None = None,
    ) -> None:
        self.gateway = gateway
        self.turn_service = turn_service
        self.streams = streams or StreamSettings()
        self._reset = reset

    async def submit(
        self,
        request: Request,
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
    ) -> TurnTicket:
        """Accept and start the turn; items that the log already has are not stored again."""
        storage, is_new = self.gateway.storage, _is_new(headers, target, items)
        digest = await body_hash(request)
        for _ in range(MAX_MATCH_ATTEMPTS):
            if is_new:
                matched = MatchedInput(tuple(items))
            else:
                matched = await self._match(request, headers, target, items)
            if matched.history_hash or target.after_turn is not None:
                waits = target.after_turn is not None
                turn_request = replace(
                    turn_request, waits_for_parent=waits, history_hash=matched.history_hash
                )
            accept = self._accept(request, turn_request, headers, target, matched, digest)
            if storage.is_bounded:
                limits = await storage.limits(request.tenant, accept.limits)
                accept = replace(accept, limits=limits)
            try:
                is_live = turn_request.is_stream or turn_request.is_background
                ticket = await self.turn_service.accept(accept, turn_request, is_live=is_live)
            except HoldfastError as exc:
                await self._reraise_or_retry(exc, request, target, matched)
                continue
            if storage.is_bounded:
                storage.note(request.tenant, sum(len(item.body) for item in matched.items))
            request.session_headers = answer_headers(ticket.session, ticket.turn.id)
            request.release_body()
            return ticket
        raise SessionBusy("the session changed concurrently; retry")

    async def _reraise_or_retry(
        self, error: HoldfastError, request: Request, target: SessionTarget, matched: MatchedInput
    ) -> None:
        """Raise the error that the client gets; return if the submission should be retried."""
        match error:
            case SessionBusy() | LaneFull():
                await self._name_session(request, target)
            case SessionMoved() if target.after_turn is None:
                return
            case SessionNotFound() if matched.repeated is not None:
                return
            case SessionNotFound() if target.conversation is not None:
                raise ConversationNotFound(target.conversation) from error
        raise error

    async def _name_session(self, request: Request, target: SessionTarget) -> None:
        """Name the session in the headers of an error reply; there is no turn."""
        session = await self.known_session(request, target)
        if session is not None:
            request.session_headers = answer_headers(session)

    async def _match(
        self,
        request: Request,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
    ) -> MatchedInput:
        """Match the items with the named session, or with keyless histories."""
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
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        matched: MatchedInput,
        digest: bytes,
    ) -> Accept:
        gateway, new_id = self.gateway, self.gateway.ids.new
        if matched.repeated is not None:
            target = _after_parent(matched.repeated)
        source: Source = "background" if turn_request.is_background else "user"
        accept = Accept(
            tenant=request.tenant,
            turn_id=TurnId(new_id("turn")),
            run_id=RunId(new_id("run")),
            worker=gateway.worker.id,
            candidate_id=SessionId(new_id("ses")),
            key=target.key,
            session_id=target.session_id,
            items=matched.items,
            request=write_request(turn_request),
            source="internal" if headers.is_internal else source,
            on_busy=headers.on_busy or gateway.settings.on_busy,
            is_internal=headers.is_internal,
            idempotency_key=headers.idempotency_key,
            body_hash=digest,
            retry_count=headers.retry_count,
        )
        # Two steps: a call with more than fifteen keywords makes CPython build a dictionary.
        return replace(
            accept,
            rewind=matched.rewind,
            seen_seq=matched.seen_seq,
            parent=target.parent,
            expected_id=headers.expected_id,
            after_turn=matched.after_turn if target.after_turn is None else target.after_turn,
            same_as=matched.same_as,
            brought=self._imported_prefix(matched.brought, matched.history_hash)
            if matched.brought
            else None,
            limits=gateway.limits,
            reset=self._reset,
        )

    def _imported_prefix(self, prefix: PrefixHash, history_hash: bytes) -> ImportedPrefix:
        """Return the history that the request brings, indexed if others may share it."""
        turn_id = TurnId(self.gateway.ids.new("turn"))
        return ImportedPrefix(
            turn_id, prefix.count, prefix.history_hash if history_hash else EMPTY_HISTORY
        )

    async def history(self, request: Request, target: SessionTarget) -> list[bytes]:
        """Return the projection that a turn's input would be appended to."""
        session = await self.known_session(request, target)
        return [] if session is None else project(await self.gateway.read.context(session))

    async def known_session(self, request: Request, target: SessionTarget) -> Session | None:
        """Return the session at the target's position; `None` if the turn would create one."""
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
        self, ticket: TurnTicket, headers: Iterable[Header], encode: EventEncoder = encode_events
    ) -> StreamingReply:
        """Return a turn's event stream; `on_disconnect` decides what a disconnect does."""
        seconds = self.streams.keep_alive_seconds
        reply = EventReply(ticket.reader(), seconds, headers, encode=encode)
        reply.delivers = ticket.turn.id, ticket.step
        if self.streams.on_disconnect == "cancel" and ticket.turn.source == "user":
            reply.on_disconnect = ticket.abandon
        return reply

    def answer(self, request: Request, ticket: TurnTicket) -> Awaitable[TurnResult]:
        """Wait for a turn's answer; cancel the turn on a disconnect if so configured."""
        if self.streams.on_disconnect == "complete":
            return ticket.answer()
        return self._answer_or_abandon(request, ticket)

    async def _answer_or_abandon(self, request: Request, ticket: TurnTicket) -> TurnResult:
        answer = asyncio.ensure_future(ticket.answer())
        disconnect = asyncio.ensure_future(request.wait_disconnected(or_half_closed=True))
        try:
            await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await ticket.abandon()
            return await answer
        finally:
            disconnect.cancel()
            await asyncio.gather(disconnect, return_exceptions=True)


def _after_parent(end: HistoryHashRow) -> SessionTarget:
    return SessionTarget(session_id=end.session_id, parent=Parent(end.seq, end.record_no))


def _is_new(headers: SessionHeaders, target: SessionTarget, items: Sequence[NewItem]) -> bool:
    """Return whether all items are new without comparing them with the log."""
    if headers.is_internal or target.parent is not None:
        return True
    if headers.key is None and headers.session_id is None:
        return target.session_id is not None
    return not headers.sends_everything and has_no_history(items)


async def body_hash(request: Request) -> bytes:
    """Read the body and return the request's hash."""
    await request.body()
    if len(request.content) <= INLINE_HASH_BYTES:
        return hash_request(request)
    # The hash of a large body takes long, and hashlib releases the interpreter lock.
    return await asyncio.to_thread(hash_request, request)


def hash_request(request: Request) -> bytes:
    """Return the hash of path, session headers and raw body, by which repeats are recognised."""
    headers = request.by_name
    hashed = blake2b(digest_size=16)
    for part in (
        request.path.encode(),
        headers.get(b"x-session-key", b""),
        headers.get(b"x-openclaw-session-key", b""),
        headers.get(b"x-session-id", b""),
    ):
        hashed.update(part + b"\0")
    hashed.update(request.content)
    return hashed.digest()


def session_id_of(name: str) -> SessionId:
    """Return the session id of a conversation id."""
    if "\0" in name:
        raise ConversationNotFound(name)
    if name.startswith("conv_"):
        return SessionId("ses_" + name.removeprefix("conv_"))
    if name.startswith("ses_"):
        return SessionId(name)
    raise ConversationNotFound(name)


def target_from_headers(headers: SessionHeaders) -> SessionTarget:
    """Return the target that the headers name."""
    return SessionTarget(key=headers.key, session_id=headers.session_id)
