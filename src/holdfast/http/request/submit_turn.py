"""Submit a request as a turn: shared by the Responses and Chat APIs."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.accept import CUT_IN_CODES
from holdfast.core.errors import (
    ApprovalNotFound,
    ComparisonNeeded,
    HoldfastError,
    InvalidInput,
    LaneFull,
    NotFound,
    SessionBusy,
    SessionDeleted,
    SessionMoved,
    SessionNotFound,
)
from holdfast.core.history.history_hash import EMPTY_HISTORY, HistoryHashRow, PrefixHash
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, session_of_name
from holdfast.core.model.items import NewItem, read_item, read_role
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.session import Session, read_pending_calls
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS
from holdfast.core.projection.project import project
from holdfast.core.tools.approval_words import (
    APPROVAL_ITEMS,
    message_text,
    named_approvals,
    read_answer,
)
from holdfast.core.tools.open_calls import find_open_calls
from holdfast.core.tools.requested import add_tools, redact_tools
from holdfast.core.transaction.commands import Accept, ImportedPrefix, LaneLimits, Parent
from holdfast.engine.model_call.compactor import as_stored_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.stream_reader import StreamReader
from holdfast.engine.turns.approvals import ApprovalService, Approver, waits_for_approval
from holdfast.engine.turns.in_flight import Arrival
from holdfast.engine.turns.input_matching import (
    COMPARED_ROLES,
    MatchedInput,
    match_first_question,
    match_input,
    match_stored_history,
    without_repeated_question,
)
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.http.request.first_questions import FirstQuestions
from holdfast.http.request.keyless_retries import KeylessRequests
from holdfast.http.request.session_headers import (
    MAX_OPEN_CALLS,
    SessionHeaders,
    answer_headers,
)
from holdfast.http.server.sse import RESPONSE_EVENTS, EventFormat, EventReply
from holdfast.http.server.types import Request, StreamingReply

MAX_MATCH_ATTEMPTS = 16
INLINE_HASH_BYTES = 1024 * 1024
MAX_WORDS = 1024
"""Bytes of a message that may answer an approval request in words."""
_OPTIONS = (
    "is_internal", "idempotency_key", "retry_count", "rewind", "seen_seq", "parent", "expected_id",
    "after_turn", "same_as", "abandons", "supersedes", "brought",
)  # fmt: skip
"""Fields of `Accept` that few requests set."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Accept)}
_NO_OPTIONS = tuple(_DEFAULTS[name] for name in _OPTIONS)


class ConversationNotFound(NotFound):
    """No conversation has this id."""

    code = "conversation_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Conversation with id '{name}' not found.")


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
        approvals: ApprovalService | None = None,
        default_tools: Callable[[Tenant, str], Sequence[str]] | None = None,
    ) -> None:
        self._default_tools = default_tools
        self.approvals = approvals or ApprovalService(gateway, turn_service)
        self.gateway = gateway
        self.turn_service = turn_service
        self.streams = streams or StreamSettings()
        self.cancels_on_disconnect = self.streams.on_disconnect == "cancel"
        self._reset = reset
        self._keyless = KeylessRequests()
        self._first_questions = FirstQuestions()

    async def submit(
        self,
        request: Request,
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
    ) -> TurnTicket:
        """Accept and start the turn; items that the log already has are not stored again.

        The `answer` of a turn that is answered as a whole executes it, and must be called
        immediately.
        """
        is_new, is_compared = _comparison(headers, target, items)
        is_new = is_new and (is_compared or self._first_questions.find(request, items) is None)
        if self._default_tools is not None:
            added = self._default_tools(request.tenant, turn_request.model)
            turn_request = add_tools(turn_request, added)
        for item in items:
            if item.kind in APPROVAL_ITEMS:
                items = await self._with_approvals(request, target, items)
                break
        if target.parent is not None:
            items = await self._after_response(request, headers, target, items)
        is_short = 0 < len(request.content) <= INLINE_HASH_BYTES
        digest = hash_request(request) if is_short else await _hash_and_drop(request)
        is_keyless = headers.key is None and target.session_id is None
        repeated = (
            await self._repeat_keyless(request, turn_request, headers, digest)
            if is_keyless and headers.retry_count
            else None
        )
        if repeated is not None:
            return repeated
        ticket, matched = await self._match_and_accept(
            request, turn_request, headers, target, items, digest,
            is_new=is_new, is_compared=is_compared,
        )  # fmt: skip
        try:
            if is_keyless:
                self._keyless.add(request, digest, ticket)
            session = ticket.session
            if session.pending_calls is not None or session.active_turn_id != ticket.turn.id:
                ticket = await self._after_hold(request, turn_request, ticket, matched.items)
            awaited = _awaited(session, ticket) if session.pending_calls is not None else ()
            request.session_headers = answer_headers(
                ticket.session, ticket.turn.id, matched.lacking or awaited
            )
            request.content = b""
            if request.held is not None:
                request.release_body()
        except BaseException:
            # An accepted turn is executed even if its request ends.
            ticket.start()
            raise
        return ticket

    async def _match_and_accept(
        self,
        request: Request,
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
        digest: bytes,
        *,
        is_new: bool,
        is_compared: bool,
    ) -> tuple[TurnTicket, MatchedInput]:
        """Accept the new items; compare again if the session changed meanwhile."""
        storage, limits = self.gateway.storage, self.gateway.limits
        limits = await storage.limits(request.tenant, limits) if storage.is_bounded else limits
        arrival = None if is_new else self._arrival(request, headers, digest, limits)
        is_whole = not is_new and headers.is_whole
        for _ in range(MAX_MATCH_ATTEMPTS):
            if arrival is None:
                matched = MatchedInput(tuple(items))
            else:
                matched = await self._match(
                    request, turn_request, headers, target, items, arrival, is_whole=is_whole
                )
            if matched.history_hash or target.after_turn is not None:
                waits = target.after_turn is not None
                turn_request = replace(
                    turn_request, waits_for_parent=waits, history_hash=matched.history_hash
                )
            accept = self._accept(
                request, turn_request, headers, target, matched, digest, is_compared=is_compared
            )
            if arrival is not None or limits is not accept.limits:
                accept = _with_limits(accept, limits, arrival)
            try:
                is_live = turn_request.is_stream or turn_request.is_background
                # Nothing cancels the task of a request whose turns continue after a disconnect.
                is_deferred = not (is_live or self.cancels_on_disconnect)
                ticket = await self.turn_service.accept(
                    accept, turn_request, is_live=is_live, is_deferred=is_deferred
                )
            except ComparisonNeeded as exc:
                is_compared = True
                duplicate = arrival or self._arrival(request, headers, digest, limits)
                resolution = await self._meet_equal(duplicate, exc)
                if resolution != "queue":
                    # A client that stopped reading and resends the same request wants a new answer.
                    arrival, is_whole = duplicate, is_whole or resolution == "superseded"
                continue
            except HoldfastError as exc:
                if not await self._may_retry(exc, request, target, matched):
                    raise
                continue
            if storage.is_bounded or matched.is_history:
                self._note_accepted(request, items, ticket, matched)
            return ticket, matched
        raise SessionBusy("the session changed concurrently; retry")

    def _note_accepted(
        self,
        request: Request,
        items: Sequence[NewItem],
        ticket: TurnTicket,
        matched: MatchedInput,
    ) -> None:
        self.gateway.storage.note(request.tenant, sum(len(item.body) for item in matched.items))
        if matched.is_history:
            self._first_questions.add(request, items, ticket)

    async def _after_response(
        self,
        request: Request,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
    ) -> Sequence[NewItem]:
        """Return the input after a response, without a question that it repeats before outputs.

        Reject outputs that leave out other calls of the response, as OpenAI does.
        """
        if target.session_id is not None and headers.history != "new":
            items = await without_repeated_question(
                self.gateway.read, request.tenant, target.session_id, items
            )
        given = {item.call_id for item in items if item.kind in OUTPUT_KINDS}
        session = await self.known_session(request, target) if given else None
        if session is None:
            return items
        history = await self.gateway.read.context(session)
        last = [item for item in history if item.turn_number == history[-1].turn_number]
        open_calls = find_open_calls(last).client_calls
        missing = [call_id for call_id in open_calls if call_id not in given]
        if missing and len(missing) < len(open_calls):
            named = ", ".join(missing[:MAX_OPEN_CALLS])
            raise InvalidInput(f"No tool output found for function call {named}.", param="input")
        return items

    async def _meet_equal(
        self, arrival: Arrival, needed: ComparisonNeeded
    ) -> Literal["queue", "superseded", "compare"]:
        """Decide about a request that may repeat a failed turn, or one whose stream was stopped."""
        if needed.active_turn_id is None:
            return "compare"
        session_id, turn_id = SessionId(needed.session_id), TurnId(needed.active_turn_id)
        in_flight = self.turn_service.in_flight
        return await in_flight.supersede_stopped(arrival, session_id, turn_id)

    async def _repeat_keyless(
        self, request: Request, turn_request: TurnRequest, headers: SessionHeaders, digest: bytes
    ) -> TurnTicket | None:
        """Attach an SDK's retry to the request that it repeats, if there is only one candidate."""
        if headers.idempotency_key is not None or headers.is_internal:
            return None
        earlier = self._keyless.find(request, digest, headers.retry_count)
        if earlier is None:
            return None
        target = SessionTarget(session_id=earlier.session_id)
        matched = MatchedInput((), same_as=(earlier.turn_id, earlier.step))
        accept = self._accept(request, turn_request, headers, target, matched, digest)
        is_live = turn_request.is_stream or turn_request.is_background
        try:
            ticket = await self.turn_service.accept(accept, turn_request, is_live=is_live)
        except (SessionNotFound, SessionDeleted):
            return None
        request.session_headers = answer_headers(ticket.session, ticket.turn.id)
        request.release_body()
        return ticket

    async def _with_approvals(
        self, request: Request, target: SessionTarget, items: Sequence[NewItem]
    ) -> Sequence[NewItem]:
        """Return the items with answers to our approval requests in the form that the log stores.

        Earlier requests and answers that a client repeats are left out: the log has them.
        """
        session = await self.known_session(request, target)
        names = named_approvals(items)
        waiting = (
            await self.approvals.answerable(
                request.tenant, session.id, lambda call: call.id in names
            )
            if session is not None
            else ()
        )
        context = await self.gateway.read.context(session) if session is not None else ()
        approver = Approver(sender=request.sender, is_admin=request.is_admin)
        return self.approvals.read_items(items, context, waiting, approver)

    async def _after_hold(
        self,
        request: Request,
        turn_request: TurnRequest,
        ticket: TurnTicket,
        items: Sequence[NewItem],
    ) -> TurnTicket:
        """Return the ticket of a turn that waits behind an approval, or of the turn it approved.

        Behind calls that run, another call may wait for the approval that the turn gives.
        """
        text = message_text(items[-1]) if items and len(items[-1].body) < MAX_WORDS else ""
        if not waits_for_approval(ticket.session) and read_answer(text) is None:
            return ticket
        ticket.start()
        if ticket.task is None:
            return ticket
        approver = Approver(sender=request.sender, is_admin=request.is_admin)
        answered = await self.approvals.answer_in_words(
            ticket, text, approver, is_stream=turn_request.is_stream
        )
        return answered or ticket

    async def _may_retry(
        self, error: HoldfastError, request: Request, target: SessionTarget, matched: MatchedInput
    ) -> bool:
        """Whether to submit again; raise `ConversationNotFound` if a conversation was named."""
        match error:
            case SessionBusy() | LaneFull():
                await self._name_session(request, target)
            case SessionMoved() if target.after_turn is None:
                return True
            case SessionNotFound() if matched.repeated is not None:
                return True
            case ApprovalNotFound() if target.parent is None:
                # An answer to another request of the turn may have come first.
                session = await self.known_session(request, target)
                return session is not None and await self.approvals.awaits(session, matched.items)
            case SessionNotFound() if target.conversation is not None:
                raise ConversationNotFound(target.conversation) from error
        return False

    async def _name_session(self, request: Request, target: SessionTarget) -> None:
        """Name the session in the headers of an error reply; there is no turn."""
        session = await self.known_session(request, target)
        if session is not None:
            request.session_headers = answer_headers(session)

    async def _match(
        self,
        request: Request,
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        items: Sequence[NewItem],
        arrival: Arrival,
        *,
        is_whole: bool,
    ) -> MatchedInput:
        """Match the items with the named session, or with keyless histories."""
        if not headers.is_bound:
            return await match_stored_history(self.gateway.read, request.tenant, items)
        is_asked_again = self._first_questions.find(request, items)
        if is_asked_again is not None:
            again = await match_first_question(
                self.gateway.read, request.tenant, items, is_asked_again,
                key=target.key, session_id=target.session_id,
            )  # fmt: skip
            if again is not None:
                return again
        return await match_input(
            self.gateway.read,
            request.tenant,
            items,
            key=target.key,
            session_id=target.session_id,
            is_whole=is_whole,
            meet=partial(self.turn_service.meet, arrival, turn_request),
        )

    def _arrival(
        self, request: Request, headers: SessionHeaders, digest: bytes, limits: LaneLimits
    ) -> Arrival:
        return Arrival(
            tenant=request.tenant,
            body_hash=digest,
            caller=caller_hash(request),
            is_forced=(headers.on_busy or self.gateway.settings.on_busy) in CUT_IN_CODES,
            idempotency_key=headers.idempotency_key,
            retry_count=headers.retry_count,
            expected_id=headers.expected_id,
            limits=limits,
        )

    def _accept(
        self,
        request: Request,
        turn_request: TurnRequest,
        headers: SessionHeaders,
        target: SessionTarget,
        matched: MatchedInput,
        digest: bytes,
        *,
        is_compared: bool = True,
    ) -> Accept:
        gateway, new_id = self.gateway, self.gateway.ids.new
        if matched.repeated is not None:
            target = _after_parent(matched.repeated)
        source = headers.background_source if turn_request.is_background else "user"
        turn_id = new_id("turn")
        # The first run of a turn, and a session that it creates, share the turn's random part.
        name = turn_id.removeprefix("turn")
        on_busy = headers.on_busy or gateway.settings.on_busy
        accept = Accept(
            tenant=request.tenant,
            turn_id=TurnId(turn_id),
            run_id=RunId(f"run{name}"),
            worker=gateway.worker.id,
            candidate_id=SessionId(f"ses{name}"),
            key=target.key,
            session_id=target.session_id,
            items=matched.items,
            request=write_request(
                _stored(turn_request, request.sender)
                if "tools" in turn_request.fields or "tools" in turn_request.chat_fields
                else turn_request
            ),
            source="internal" if headers.is_internal else source,
            on_busy="rollback" if matched.supersedes else on_busy,
            body_hash=digest,
            is_compared=is_compared,
            has_streams=bool(self.turn_service.in_flight.streams),
            limits=gateway.limits,
            reset=self._reset,
        )
        options = (
            headers.is_internal,
            headers.idempotency_key,
            headers.retry_count,
            matched.rewind,
            matched.seen_seq,
            target.parent,
            headers.expected_id,
            matched.after_turn if target.after_turn is None else target.after_turn,
            matched.same_as,
            matched.abandons,
            matched.supersedes,
            matched.brought and self._imported_prefix(matched.brought, matched.history_hash),
        )
        # Most requests have none, and copying the command costs more than building it.
        if options == _NO_OPTIONS:
            return accept
        return replace(accept, **dict(zip(_OPTIONS, options, strict=True)))

    def _imported_prefix(self, prefix: PrefixHash, history_hash: bytes) -> ImportedPrefix:
        """Return the history in the request, indexed if other sessions may share it."""
        turn_id = TurnId(self.gateway.ids.new("turn"))
        return ImportedPrefix(
            turn_id, prefix.count, prefix.history_hash if history_hash else EMPTY_HISTORY
        )

    async def history(self, request: Request, target: SessionTarget) -> list[bytes]:
        """Return the projection that a turn's input would be appended to."""
        session = await self.known_session(request, target)
        return [] if session is None else project(await self.gateway.read.context(session))

    async def with_history(
        self, request: Request, target: SessionTarget, items: list[NewItem]
    ) -> list[NewItem]:
        """Return the items after the history that they continue, for a request without a turn.

        Both are projected together, so that an output joins its call in the history.
        """
        session = await self.known_session(request, target)
        if session is None:
            return items
        history = await self.gateway.read.context(session)
        turn_number = history[-1].turn_number + 1 if history else 1
        new = [
            replace(item, seq=session.head_seq + item.seq, turn_number=turn_number)
            for item in as_stored_items(items)
        ]
        quarantined = await self.gateway.read.quarantined(session)
        return [read_item(body) for body in project([*history, *new], quarantined)]

    async def known_session(self, request: Request, target: SessionTarget) -> Session | None:
        """Return the session at the target's position; `None` if the turn would create one."""
        if target.session_id is None and target.key is None:
            return None
        session = await self.gateway.read.find_session(
            request.tenant, session_id=target.session_id, key=target.key
        )
        if session is None and target.key is None:
            raise SessionNotFound(f"no session {target.session_id}")
        if session is None or target.parent is None:
            return session
        return session.as_of(target.parent.seq, target.parent.record_no)

    def stream(
        self, request: Request, ticket: TurnTicket, encode: EventFormat = RESPONSE_EVENTS
    ) -> StreamingReply:
        """Return a turn's event stream; `on_disconnect` decides what a disconnect does."""
        seconds, reader = self.streams.keep_alive_seconds, ticket.reader()
        reply = EventReply(reader, seconds, request.session_headers, encode=encode)
        reply.delivers = ticket.turn.id, ticket.step
        client = _StreamClient(request, reader)
        live = self.turn_service.live(reader.name)
        if live is not None and not live.is_ended:
            live.clients.append(client)
        reply.on_disconnect = partial(self._on_disconnect, ticket)
        return reply

    async def _on_disconnect(self, ticket: TurnTicket) -> None:
        if self.cancels_on_disconnect and ticket.turn.source == "user":
            await ticket.abandon()


def _awaited(session: Session, ticket: TurnTicket) -> Sequence[str]:
    """Return the calls that a turn waits for behind another one."""
    return read_pending_calls(session) if session.active_turn_id != ticket.turn.id else ()


def _with_limits(accept: Accept, limits: LaneLimits, arrival: Arrival | None) -> Accept:
    """Return a command with the limits of its tenant, or in the place of the turn that it ended."""
    if arrival is not None and arrival.has_ended_turn:
        return arrival.take_place(accept)
    return accept if limits is accept.limits else replace(accept, limits=limits)


def _stored(turn_request: TurnRequest, sender: str) -> TurnRequest:
    """Return a request with tools as it is stored: with its sender, without credentials."""
    return redact_tools(replace(turn_request, sender=sender))


class _StreamClient:
    """The client of a streamed turn."""

    __slots__ = ("_reader", "_request")

    def __init__(self, request: Request, reader: StreamReader) -> None:
        self._request = request
        self._reader = reader

    @property
    def caller(self) -> bytes:
        """The hash of its API key."""
        return caller_hash(self._request)

    @property
    def has_left(self) -> bool:
        """Whether it has closed its connection, or its sending side."""
        return self._request.disconnected or self._request.is_half_closed

    @property
    def position(self) -> int:
        """The number of the last event that was sent to it."""
        return self._reader.position


def caller_hash(request: Request) -> bytes:
    """Return a hash of the request's API key."""
    return blake2b(request.by_name.get(b"authorization", b""), digest_size=16).digest()


def _after_parent(end: HistoryHashRow) -> SessionTarget:
    return SessionTarget(session_id=end.session_id, parent=Parent(end.seq, end.record_no))


def _comparison(
    headers: SessionHeaders, target: SessionTarget, items: Sequence[NewItem]
) -> tuple[bool, bool]:
    """Return whether all items count as new, and whether the log need not be compared with them.

    Input that looks new is compared with the log only if the store asks for it.
    """
    if headers.is_internal or target.parent is not None or headers.history == "new":
        return True, True
    if headers.key is None and headers.session_id is None:
        return target.session_id is not None, True
    if headers.history == "whole" or headers.sends_everything or len(items) != 1:
        return False, False
    # One message of a user repeats nothing.
    item = items[0]
    return item.kind == "message" and read_role(item.body).role not in COMPARED_ROLES, False


async def body_hash(request: Request) -> bytes:
    """Read the body and return the request's hash."""
    if not request.content:
        await request.body()
    if len(request.content) <= INLINE_HASH_BYTES:
        return hash_request(request)
    # The hash of a large body takes long, and hashlib releases the interpreter lock.
    return await asyncio.to_thread(hash_request, request)


async def _hash_and_drop(request: Request) -> bytes:
    """Return the request's hash, and drop a large body: its items are decoded by now."""
    if not request.digest:
        digest = await body_hash(request)
        if len(request.content) <= INLINE_HASH_BYTES:
            return digest
        # Its items still count as bytes in flight until the turn is accepted.
        request.digest, request.content = digest, b""
    return request.digest


def hash_request(request: Request) -> bytes:
    """Return the hash of path, session headers and raw body, by which repeats are recognised."""
    headers = request.by_name
    hashed = blake2b(
        b"%b\0%b\0%b\0%b\0"
        % (
            request.path.encode(),
            headers.get(b"x-session-key", b""),
            headers.get(b"x-openclaw-session-key", b""),
            headers.get(b"x-session-id", b""),
        ),
        digest_size=16,
    )
    hashed.update(request.content)
    return hashed.digest()


def session_id_of(name: str) -> SessionId:
    """Return the session id of a conversation id."""
    session_id = session_of_name(name)
    if "\0" in name or not session_id.startswith("ses_"):
        raise ConversationNotFound(name)
    return session_id


def target_from_headers(headers: SessionHeaders) -> SessionTarget:
    """Return the target that the headers name."""
    return SessionTarget(key=headers.key, session_id=headers.session_id)
