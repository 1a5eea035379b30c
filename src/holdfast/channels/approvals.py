"""Approvals in a chat, by buttons or text; only a permitted person can answer."""

import contextlib
from collections.abc import Awaitable, Callable

from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import (
    ApprovalForbidden,
    ApprovalNotFound,
    IdempotencyMismatch,
    SessionBusy,
)
from holdfast.core.ids import Tenant
from holdfast.core.tools.approval_words import ApprovalAnswer, approval_code, read_answer
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.approvals import (
    ApprovalService,
    Approver,
    PendingApproval,
    may_answer,
    waits_for_approval,
)
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.ports.channel import Button, ButtonPress, InboundMessage, PressResult
from holdfast.ports.outbox import OpenRequest

NOT_YET = "Another call is still running. Press the button again when it has ended."
NOT_YET_IN_WORDS = "Another call is still running. Send your answer again when it has ended."
NOT_WAITING = "This request is not waiting for an answer any more."
FORBIDDEN = "Only the person who asked, or an approver, may answer this request."
INSTEAD = "a new message came instead of an answer"
REQUESTS_PAGE = 1000
_ALLOW, _DENY = "allow:", "deny:"
Reply = Callable[[InboundMessage, str, str], Awaitable[None]]
"""Answers a message, once per key, with a text."""


def approval_buttons(approval_id: str) -> tuple[Button, ...]:
    """Return the buttons of an approval request."""
    return Button("Allow", _ALLOW + approval_id), Button("Deny", _DENY + approval_id)


def _read_button(value: str) -> tuple[bool, str] | None:
    """Return whether a press approves, and which request; `None` for other values."""
    for prefix in (_ALLOW, _DENY):
        if value.startswith(prefix):
            return prefix == _ALLOW, value.removeprefix(prefix)
    return None


class ChatApprovals:
    """Answers approval requests of the turns of one channel."""

    def __init__(
        self,
        gateway: Gateway,
        turns: TurnService,
        settings: ChannelSettings,
        attend: Callable[[TurnTicket], None],
        reply: Reply,
    ) -> None:
        self._gateway = gateway
        self._service = ApprovalService(gateway, turns)
        self._settings = settings
        self._attend = attend
        self._reply = reply
        self._tenant = Tenant(settings.tenant)

    def identity(self, sender: str) -> str:
        """Return the name of a platform user among approvers; no API key has such a name."""
        return f"{self._settings.name}:{sender}"

    @property
    def approvers(self) -> tuple[str, ...]:
        """Further approvers of calls in this channel's turns."""
        return tuple(self.identity(sender) for sender in self._settings.approvers)

    def _approver(self, sender: str, name: str) -> Approver:
        return Approver(sender=self.identity(sender), name=name or sender)

    def _named_id(self, message: InboundMessage) -> str | None:
        """Return the id by which the operator named the sender as an approver, if so."""
        ids = (message.sender, *message.aliases)
        return next((sender_id for sender_id in ids if sender_id in self._settings.approvers), None)

    def is_approver(self, message: InboundMessage) -> bool:
        """Whether the operator named the sender as an approver."""
        is_person = not (message.is_own or message.is_bot or message.is_anonymous)
        return is_person and self._named_id(message) is not None

    async def answer_in_words(self, message: InboundMessage, once: str) -> bool:
        """Act on a message with the code of a request; return whether it answered one.

        It may come from any chat of a person who may answer. While other calls of the turn run,
        the person is asked to answer again later: the message is not one for the model.
        """
        words = read_answer(message.text)
        if words is None:
            return False
        approvers = [
            self._approver(sender, message.sender_name)
            for sender in dict.fromkeys((message.sender, self._named_id(message)))
            if sender is not None
        ]
        for waiting in await self._named(words[1]):
            approver = next((sender for sender in approvers if may_answer(waiting, sender)), None)
            if approver is None:
                continue
            try:
                return await self._answer(waiting.id, approver, words[0], once)
            except SessionBusy:
                await self._reply(message, once, NOT_YET_IN_WORDS)
                return True
            except IdempotencyMismatch:
                return True  # delivered again: the person was asked to answer later
        return False

    async def _named(self, code: str) -> list[PendingApproval]:
        """Return the requests with a code that were sent to the chats of this channel."""
        named: list[OpenRequest] = []
        after: str | None = ""
        while after is not None:
            page = await self._gateway.store.channels.open_requests(
                self._tenant, self._settings.name, after=after, limit=REQUESTS_PAGE
            )
            named += [approval for approval in page if approval_code(approval.approval_id) == code]
            after = page[-1].approval_id if len(page) == REQUESTS_PAGE else None
        return [
            waiting
            for request in named
            for waiting in await self._service.unanswered(self._tenant, request.session_id)
            if waiting.id == request.approval_id
        ]

    async def press(self, press: ButtonPress, once: str) -> PressResult:
        """Act on a button of a request; the first answer wins."""
        button = _read_button(press.value)
        if button is None:
            return PressResult(NOT_WAITING, "over")
        is_approved, approval_id = button
        approver = self._approver(press.sender, press.sender_name)
        try:
            is_answered = await self._answer(approval_id, approver, is_approved, once)
        except ApprovalForbidden:
            return PressResult(FORBIDDEN)
        except SessionBusy:
            return PressResult(NOT_YET)
        if not is_answered:
            return PressResult(NOT_WAITING, "over")
        return PressResult("Allowed." if is_approved else "Denied.", "done")

    async def deny_before(self, ticket: TurnTicket, sender: str) -> None:
        """Deny the approval requests to a sender who writes a new message instead of an answer.

        The model learns that the call was not run, and gets the new message with it.
        """
        turn, session = ticket.turn, ticket.session
        if not turn.is_open or turn.attempts or not waits_for_approval(session):
            return
        approver = Approver(sender=self.identity(sender))
        waiting = [
            request
            for request in await self._service.of_session(self._tenant, session.id)
            if request.turn_id != turn.id and request.sender == approver.sender
        ]
        if not waiting:
            return
        with contextlib.suppress(ApprovalNotFound):
            self._follow(await self._service.deny(waiting, approver, INSTEAD))

    async def _answer(
        self, approval_id: str, approver: Approver, is_approved: bool, once: str
    ) -> bool:
        """Answer a request and show what its turn does next; return False if it does not wait.

        Nothing waits here: all chats of the channel would.
        """
        try:
            ticket = await self._service.answer(
                self._tenant, ApprovalAnswer(approval_id, is_approved), approver,
                is_stream=True, idempotency_key=once, waits=False,
            )  # fmt: skip
        except ApprovalNotFound:
            return False
        self._follow(ticket)
        return True

    def _follow(self, ticket: TurnTicket) -> None:
        if ticket.task is not None:
            self._attend(ticket)
