"""Approvals of tool calls: list those that wait, and answer one."""

import re
from typing import Any

from holdfast.core.errors import ApprovalNotFound, InvalidInput
from holdfast.core.ids import Key, SessionId, session_of_name
from holdfast.core.tools.approval_words import ApprovalAnswer
from holdfast.engine.turns.approvals import ApprovalService, Approver, PendingApproval
from holdfast.http.request.body import pop_field, read_fields, reject_unknown
from holdfast.http.request.pagination import read_limit
from holdfast.http.request.session_headers import name_session
from holdfast.http.server.types import AnyReply, Request, json_reply

MAX_LIMIT = 1000
_SESSION_ID = re.compile(r"(?:ses|conv)_[\w-]{1,64}", re.ASCII)


class ApprovalsApi:
    """Everything under /v1/approvals."""

    def __init__(self, approvals: ApprovalService) -> None:
        self._approvals = approvals

    async def list_all(self, request: Request) -> AnyReply:
        """Return the calls of the tenant that wait for an approval."""
        query = request.query()
        limit = read_limit(query, 100, MAX_LIMIT)
        key, session_id, after = query.get("key"), query.get("session_id"), query.get("after")
        if session_id is not None and not _SESSION_ID.fullmatch(session_id):
            raise InvalidInput("session_id must be the id of a session", param="session_id")
        if after is not None and not _SESSION_ID.fullmatch(after):
            raise InvalidInput("after must be the next_after of a page", param="after")
        if after is not None and session_id is not None:
            raise InvalidInput("the approvals of one session have no next page", param="after")
        page = await self._approvals.page(
            request.tenant,
            key=Key(key) if key is not None else None,
            session_id=session_of_name(session_id) if session_id is not None else None,
            limit=limit,
            after=SessionId(after) if after is not None else None,
        )
        return json_reply(
            {
                "object": "list",
                "data": [_value(each) for each in page.approvals],
                "has_more": page.next_after is not None,
                "next_after": page.next_after,
            }
        )

    async def answer(self, request: Request) -> AnyReply:
        """Allow or deny a call; the turn resumes at once, in the background."""
        fields = await read_fields(request)
        approve, reason = pop_field(fields, "approve", bool), pop_field(fields, "reason", str)
        reject_unknown(fields)
        if approve is None:
            raise InvalidInput('send {"approve": true} or {"approve": false}', param="approve")
        name = request.params["id"]
        if "\0" in name:
            raise ApprovalNotFound("no such approval")
        ticket = await self._approvals.answer(
            request.tenant, ApprovalAnswer(name, approve, reason), approver_of(request)
        )
        name_session(request, ticket.session, ticket.turn.id)
        return json_reply(
            {
                "id": name,
                "object": "approval",
                "approve": approve,
                "session_id": ticket.session.id,
                "turn_id": ticket.turn.id,
                "response_id": ticket.response_id,
            }
        )


def approver_of(request: Request) -> Approver:
    """Return the caller of a request as somebody who answers approvals."""
    return Approver(sender=request.sender, is_admin=request.is_admin)


def _value(waiting: PendingApproval) -> dict[str, Any]:
    return {
        "id": waiting.id,
        "object": "approval",
        "code": waiting.code,
        "server_label": waiting.server_label,
        "name": waiting.tool,
        "arguments": waiting.arguments,
        "session_id": waiting.session_id,
        "key": waiting.key,
        "turn_id": waiting.turn_id,
        "source": waiting.source,
        "sender": waiting.sender or None,
        "expires_at": int(waiting.expires_at) if waiting.expires_at is not None else None,
    }
