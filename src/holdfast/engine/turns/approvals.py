"""Approvals of tool calls: which wait, who may answer, and what an answer does.

A turn that waits for an approval holds its lane. An answer joins the turn like the output of a
client's tool; the first one wins. It is bound to the committed call, arguments included. While
other calls of the turn run, an answer waits for their end.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import ApprovalForbidden, ApprovalNotFound, SessionBusy, SessionMoved
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.gateway_items import (
    APPROVAL,
    APPROVAL_PREFIX,
    APPROVAL_SUFFIX,
    CALL,
    GatewayApproval,
    GatewayCall,
    store_item,
    words_item,
)
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.request import TurnRequest, find_request, read_request
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Source, Turn
from holdfast.core.tools.approval_words import (
    APPROVAL_ITEMS,
    REQUEST,
    RESPONSE,
    ApprovalAnswer,
    read_answer,
    read_approval,
)
from holdfast.core.tools.open_calls import find_open_calls
from holdfast.core.transaction.commands import Accept, Cancel
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.ports.store import SessionQuery

ADMIN = "admin"
"""Among `approvers`: every admin key."""
PAGE = 100
MAX_PAGE_CHARACTERS = 1024 * 1024
"""The most arguments of a page of approvals, unless those of one session are longer."""
MAX_SESSIONS = 2000
"""How many running sessions are searched for one page of approvals."""
MAX_JOINS = 64
"""How often an answer tries to join its turn while other answers come first."""


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for approval."""

    id: str
    code: str
    tenant: Tenant
    session_id: SessionId
    key: Key | None
    turn_id: TurnId
    server_label: str
    tool: str
    arguments: str
    sender: str
    source: Source
    expires_at: float | None
    approvers: tuple[str, ...] = ()


class ApprovalPage(msgspec.Struct, frozen=True):
    """Calls that wait for approval, of some of a tenant's sessions."""

    approvals: list[PendingApproval]
    next_after: SessionId | None = None
    """The session behind which the next page begins; None if there is no further page."""


class Approver(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers: a platform user, or the holder of an API key."""

    sender: str
    is_admin: bool = False
    name: str = ""
    """How a person is called on the platform."""


class _TurnCalls(msgspec.Struct, frozen=True):
    session: Session
    turn: Turn
    request: TurnRequest
    calls: tuple[GatewayCall, ...]


IsMeant = Callable[[GatewayCall], bool]
"""Whether an answer means a call."""


def waits_for_approval(session: Session) -> bool:
    """Whether a session's lane is held for an approval."""
    return session.pending_calls is not None and APPROVAL_PREFIX in session.pending_calls


class ApprovalService:
    """Lists and answers approvals."""

    def __init__(
        self, gateway: Gateway, turns: TurnService, approvers: tuple[str, ...] = ()
    ) -> None:
        self._gateway = gateway
        self._turns = turns
        self._approvers = approvers

    # ── what waits ──────────────────────────────────────────────────────────────────────────

    async def pending(
        self, tenant: Tenant, *, key: Key | None = None, limit: int = MAX_SESSIONS
    ) -> list[PendingApproval]:
        """Return calls of a tenant that wait for an approval: those of the first page."""
        return (await self.page(tenant, key=key, limit=limit)).approvals[:limit]

    async def page(
        self,
        tenant: Tenant,
        *,
        key: Key | None = None,
        session_id: SessionId | None = None,
        limit: int = PAGE,
        after: SessionId | None = None,
    ) -> ApprovalPage:
        """Return a page of the calls of a tenant that wait for an approval, newest session first.

        A page has all calls of its sessions, so that one session's may exceed the limit, which is
        also one of the size of their arguments. A page
        that looked at many running sessions may be short, and has a next one all the same. The
        calls of one session are read from its lane, however many other sessions run.
        """
        if session_id is not None:
            waiting = await self.of_session(tenant, session_id)
            return ApprovalPage([approval for approval in waiting if key in (None, approval.key)])
        approvals: list[PendingApproval] = []
        size = 0
        for _ in range(MAX_SESSIONS // PAGE):
            query = SessionQuery(key=key, status="running", after=after, limit=PAGE)
            views = await self._gateway.read.sessions(tenant, query)
            for view in views:
                if waits_for_approval(view.session):
                    more = await self._of_session(tenant, view.session)
                    size += sum(len(approval.arguments) for approval in more)
                    is_full = len(approvals) + len(more) > limit or size > MAX_PAGE_CHARACTERS
                    if approvals and is_full:
                        return ApprovalPage(approvals, after)
                    approvals += more
                after = view.session.id
            if len(views) < PAGE:
                return ApprovalPage(approvals)
        return ApprovalPage(approvals, after)

    async def of_session(self, tenant: Tenant, session_id: SessionId) -> list[PendingApproval]:
        """Return the calls of one session that wait for an approval."""
        view = await self._gateway.read.session(tenant, session_id=session_id)
        if view is None or not waits_for_approval(view.session):
            return []
        return await self._of_session(tenant, view.session)

    async def answerable(
        self, tenant: Tenant, session_id: SessionId, is_meant: IsMeant, *, waits: bool = True
    ) -> list[PendingApproval]:
        """Return the calls of one session that wait for an approval.

        Nothing can join a turn while its calls run: if a call that waits behind them is meant,
        wait until they have ended. Raise `SessionBusy` if they do not end in time, or if the
        caller does not wait.
        """
        read = self._gateway.read
        try:
            async with asyncio.timeout(self._gateway.settings.max_wait_seconds):
                while (view := await read.session(tenant, session_id=session_id)) is not None:
                    running = await self._running(view.session)
                    if running is None or not any(map(is_meant, running.calls)):
                        waiting = await self.of_session(tenant, session_id)
                        after = await read.session(tenant, session_id=session_id)
                        if after is None or after.session.version == view.session.version:
                            return waiting
                        # Another answer came between the reads: look again.
                    elif waits:
                        await self._gateway.wait_until_ended(tenant, running.turn.id)
                    else:
                        raise TimeoutError
                return []
        except TimeoutError:
            raise SessionBusy("other calls of the turn are running; answer again later") from None

    async def awaits(self, session: Session, items: Sequence[NewItem]) -> bool:
        """Whether a turn of a session waits for an answer among the items, now or soon."""
        names = {item.call_id for item in items if item.kind == APPROVAL}
        waiting = await self.answerable(session.tenant, session.id, lambda call: call.id in names)
        return any(each.id in names for each in waiting)

    async def unanswered(self, tenant: Tenant, session_id: SessionId) -> list[PendingApproval]:
        """Return the calls of one session that wait for an approval, also behind calls that run."""
        view = await self._gateway.read.session(tenant, session_id=session_id)
        if view is None:
            return []
        running = await self._running(view.session)
        if running is not None:
            return self._describe(running)
        return await self._of_session(tenant, view.session)

    async def _running(self, session: Session) -> _TurnCalls | None:
        """Return the turn of a session that runs now, and its calls without an answer."""
        if session.active_turn_id is None or session.is_held:
            return None
        view = await self._gateway.read.turn(session.tenant, session.active_turn_id)
        if view is None or view.status != "running":
            return None
        request = find_request(view.turn.request)
        if request is None:
            return None  # it calls no tools of the gateway
        calls = await self._unanswered(session, view.turn)
        return _TurnCalls(session, view.turn, request, calls)

    async def _of_session(self, tenant: Tenant, session: Session) -> list[PendingApproval]:
        held = await self._held(tenant, session)
        return self._describe(held) if held is not None else []

    def _describe(self, held: _TurnCalls) -> list[PendingApproval]:
        session = held.session
        return [
            PendingApproval(
                id=call.id,
                code=call.code or "",
                tenant=session.tenant,
                session_id=session.id,
                key=session.key,
                turn_id=held.turn.id,
                server_label=call.server_label,
                tool=call.name,
                arguments=call.arguments,
                sender=held.request.sender,
                source=held.turn.source,
                expires_at=session.hold_until,
                approvers=(*self._approvers, *held.request.approvers),
            )
            for call in held.calls
        ]

    async def _held(self, tenant: Tenant, session: Session) -> _TurnCalls | None:
        """Return the turn that a session's lane is held for, and the calls that wait."""
        turn_id, until = session.active_turn_id, session.hold_until
        if turn_id is None or until is None or until <= self._gateway.clock.now():
            return None
        view = await self._gateway.read.turn(tenant, turn_id)
        if view is None or view.status != "requires_action":
            return None
        calls = await self._unanswered(session, view.turn)
        return _TurnCalls(session, view.turn, read_request(view.turn.request), calls)

    async def _unanswered(self, session: Session, turn: Turn) -> tuple[GatewayCall, ...]:
        """Return the calls of a turn that need an approval and have no answer yet."""
        items = [
            item
            for item in await self._gateway.read.context(session)
            if item.turn_number == turn.number and item.session_id == session.id
        ]
        open_calls = find_open_calls(items)
        return tuple(
            call
            for call in open_calls.calls
            if call.code is not None and call.id not in open_calls.approvals
        )

    # ── answering ───────────────────────────────────────────────────────────────────────────

    async def answer(
        self,
        tenant: Tenant,
        answer: ApprovalAnswer,
        approver: Approver,
        *,
        words: str | None = None,
        is_stream: bool = False,
        idempotency_key: str | None = None,
        waits: bool = True,
    ) -> TurnTicket:
        """Answer an approval request; the ticket is the turn's next step.

        `words` is what the person wrote, so that a client that repeats it is recognized. While
        other calls of the turn run, wait for their end, or raise `SessionBusy`.
        """
        for _ in range(MAX_JOINS):
            pending = await self._find(tenant, answer.name, waits=waits)
            item = self.item_for(pending, approver, answer)
            spoken = () if words is None else (words_item(self._new("gww"), "user", words),)
            try:
                return await self._join(
                    tenant, pending, (item, *spoken), is_stream=is_stream,
                    idempotency_key=idempotency_key,
                )  # fmt: skip
            except ApprovalNotFound:
                # Another answer came first: to this request, or to another one of the turn.
                continue
        raise SessionBusy(f"approval {answer.name} was overtaken by other answers; retry")

    async def _find(self, tenant: Tenant, approval_id: str, *, waits: bool) -> PendingApproval:
        for session_id in await self._gateway.read.busy_sessions_with(tenant, approval_id):
            waiting = await self.answerable(
                tenant, session_id, lambda call: call.id == approval_id, waits=waits
            )
            for each in waiting:
                if each.id == approval_id:
                    return each
        if not approval_id.endswith(APPROVAL_SUFFIX):
            # Requests of version 0.1.0 are not found by their id: look at the running sessions.
            for each in await self.pending(tenant, limit=MAX_SESSIONS):
                if each.id == approval_id:
                    return each
        raise ApprovalNotFound(f"no approval {approval_id} is pending")

    async def deny(
        self, waiting: Sequence[PendingApproval], approver: Approver, reason: str
    ) -> TurnTicket:
        """Deny the requests of one turn together, so that the turn resumes once."""
        items = tuple(
            self.item_for(each, approver, ApprovalAnswer(each.id, False, reason))
            for each in waiting
        )
        return await self._join(waiting[0].tenant, waiting[0], items, is_stream=True)

    def item_for(
        self, pending: PendingApproval, approver: Approver, answer: ApprovalAnswer
    ) -> NewItem:
        """Return an answer as the item that joins the waiting turn; raise if it is not allowed."""
        if not may_answer(pending, approver):
            raise ApprovalForbidden(f"only the sender of {pending.turn_id} may answer {pending.id}")
        log.info(
            "tool.approval",
            turn_id=pending.turn_id,
            session_id=pending.session_id,
            approve=answer.approve,
        )
        return self._item(answer, approver)

    def _item(self, answer: ApprovalAnswer, approver: Approver) -> NewItem:
        return store_item(
            GatewayApproval(
                id=self._new("mcpa"),
                call_id=answer.name,
                approve=answer.approve,
                reason=answer.reason[:1000] if answer.reason else None,
                by=approver.sender or None,
                name=approver.name or None,
            )
        )

    def read_items(
        self,
        items: Sequence[NewItem],
        context: Sequence[StoredItem],
        waiting: Iterable[PendingApproval],
        approver: Approver,
    ) -> list[NewItem]:
        """Return a request's items with answers to our approval requests as the log stores them.

        What a client repeats of earlier requests and answers is left out: the log has it. A
        request that has only such answers keeps one, which finds nothing that waits for it.
        """
        own, upstreams = _approval_ids(items, context)
        pending = {each.id: each for each in waiting}
        kept: list[NewItem] = []
        stale: ApprovalAnswer | None = None
        for item in items:
            answer = read_approval(item) if item.kind in APPROVAL_ITEMS else None
            if answer is None or answer.name in upstreams:
                kept.append(item)
            elif item.kind != RESPONSE:
                continue
            elif answer.name in pending:
                kept.append(self.item_for(pending[answer.name], approver, answer))
            elif answer.name in own:
                stale = answer
            else:
                raise ApprovalNotFound(f"no approval {answer.name} is pending")
        if not kept and stale is not None:
            kept.append(self._item(stale, approver))
        return kept

    async def _join(
        self,
        tenant: Tenant,
        pending: PendingApproval,
        items: tuple[NewItem, ...],
        *,
        is_stream: bool,
        idempotency_key: str | None = None,
    ) -> TurnTicket:
        view = await self._gateway.read.session(tenant, session_id=pending.session_id)
        if view is None:
            raise ApprovalNotFound(f"no approval {pending.id} is pending")
        turn = await self._gateway.read.turn(tenant, pending.turn_id)
        if turn is None:
            raise ApprovalNotFound(f"no approval {pending.id} is pending")
        request = replace(read_request(turn.turn.request), is_stream=is_stream)
        accept = Accept(
            tenant=tenant,
            turn_id=TurnId(self._new("turn")),
            run_id=RunId(self._new("run")),
            worker=self._gateway.worker.id,
            candidate_id=SessionId(self._new("ses")),
            session_id=pending.session_id,
            items=items,
            request=turn.turn.request,
            source=turn.turn.source,
            on_busy="reject",
            idempotency_key=idempotency_key,
            body_hash=blake2b(items[0].body, digest_size=16).digest(),
            after_turn=view.session.turn_count,
            limits=self._gateway.limits,
        )
        is_live = request.is_stream or request.is_background
        try:
            return await self._turns.accept(accept, request, is_live=is_live)
        except (SessionMoved, SessionBusy) as exc:
            raise ApprovalNotFound(f"approval {pending.id} was answered meanwhile") from exc

    async def answer_in_words(
        self, ticket: TurnTicket, text: str, approver: Approver, *, is_stream: bool = False
    ) -> TurnTicket | None:
        """Act on a message that waits behind an approval request.

        A message of the right person that names a code answers the request, and the step that
        follows is returned. Any other message of the sender means no: the waiting turn ends, and
        the message is next.
        """
        turn, session_id, answer = ticket.turn, ticket.session.id, read_answer(text)
        waiting = [
            each
            for each in await self.answerable(
                turn.tenant,
                session_id,
                lambda call: answer is not None and call.code == answer[1],
            )
            if may_answer(each, approver)
        ]
        if not waiting:
            return None
        named = [each for each in waiting if answer is not None and each.code == answer[1]]
        if answer is None or not named:
            if waiting[0].sender == approver.sender:
                await self._deny(waiting[0])
            return None
        await self._gateway.submit(
            Cancel(
                tenant=turn.tenant,
                turn_id=turn.id,
                reason="the message answered an approval request",
                code="approval_answered",
                only_if_queued=True,
            )
        )
        return await self.answer(
            turn.tenant,
            ApprovalAnswer(named[0].id, answer[0]),
            approver,
            words=text,
            is_stream=is_stream,
        )

    async def _deny(self, waiting: PendingApproval) -> None:
        """End the turn that waits; the model learns that its call was not run."""
        await self._gateway.submit(
            Cancel(
                tenant=waiting.tenant,
                turn_id=waiting.turn_id,
                reason="a new message came instead of an approval",
                outcome="interrupted",
                code="approval_denied",
            )
        )

    def _new(self, prefix: str) -> str:
        return self._gateway.ids.new(prefix)


def may_answer(waiting: PendingApproval, approver: Approver) -> bool:
    """Whether somebody may answer: the sender of the turn, or one of the approvers."""
    if approver.sender == waiting.sender:
        return True
    if approver.is_admin and ADMIN in waiting.approvers:
        return True
    return bool(approver.sender) and approver.sender in waiting.approvers


def _approval_ids(
    items: Sequence[NewItem], context: Sequence[StoredItem]
) -> tuple[set[str | None], set[str | None]]:
    """Return the ids of approval requests: ours, and those of an upstream that runs tools."""
    own = {item.item_id for item in context if item.kind == CALL}
    stored = {item.item_id for item in context if item.kind == REQUEST}
    sent = {item.item_id for item in items if item.kind == REQUEST}
    return own, (stored | sent) - own
