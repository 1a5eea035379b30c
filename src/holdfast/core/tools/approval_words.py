"""Approvals as text: a request as text, and an answer that names its code."""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.core.model.items import NewItem

_ANSWER = re.compile(
    r"[\s`'\"*]*(yes|y|ok|approve|allow|no|n|deny|reject)[\s`'\"*,.:;-]+([A-Z0-9]{4})[\s`'\"*.!]*",
    re.IGNORECASE,
)
"""The request shows its answers as code, so a copy of one may have the marks of code around it."""
_YES = frozenset({"yes", "y", "ok", "approve", "allow"})
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""The alphabet of codes, without letters and digits that look alike."""


def approval_code(approval_id: str) -> str:
    """Return the short code that an approval by text must repeat."""
    digest = blake2b(approval_id.encode(), digest_size=4).digest()
    return "".join(CODE_LETTERS[byte % len(CODE_LETTERS)] for byte in digest)


def read_answer(text: str) -> tuple[bool, str] | None:
    """Return whether a text approves a call, and the code that it names; None for other texts."""
    match = _ANSWER.fullmatch(text)
    if match is None:
        return None
    return match[1].lower() in _YES, match[2].upper()


def approval_text(item: dict[str, Any], code: str) -> str:
    """Return the request for an approval as text."""
    return (
        f"Approval needed: {item.get('server_label')} wants to run {item.get('name')} with\n"
        f"{item.get('arguments') or '{}'}\n"
        f"Answer `yes {code}` to allow it, or `no {code}`."
    )


def approval_markdown(item: dict[str, Any]) -> str:
    """Return the request for an approval as Markdown, with its arguments in full."""
    arguments, code = item.get("arguments") or "{}", item.get("approval_code")
    # Longer than every fence in the arguments, so that they cannot end their code block.
    longest = max((len(run) for run in re.findall("`+", arguments)), default=0)
    fence = "`" * max(longest + 1, 3)
    return (
        f"**Approval needed**: {item.get('server_label')} wants to run `{item.get('name')}` with\n"
        f"{fence}\n{arguments}\n{fence}\n"
        f"Answer `yes {code}` to allow it, or `no {code}`."
    )


REQUEST, RESPONSE = "mcp_approval_request", "mcp_approval_response"
APPROVAL_ITEMS = frozenset({REQUEST, RESPONSE})


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """A client's answer to an approval: the id of the request, and whether it approves."""

    name: str
    approve: bool = False
    reason: str | None = None


class _Approval(msgspec.Struct):
    id: Any = None
    approval_request_id: Any = None
    approve: Any = None
    reason: Any = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: Any = None


def read_approval(item: NewItem) -> ApprovalAnswer | None:
    """Return the id and answer in an approval request or response, or None if it has no id."""
    value = msgspec.json.decode(item.body, type=_Approval)
    name = value.id if item.kind == REQUEST else value.approval_request_id
    if not isinstance(name, str):
        return None
    reason = value.reason if isinstance(value.reason, str) else None
    return ApprovalAnswer(name, value.approve is True, reason)


def named_approvals(items: Iterable[NewItem]) -> set[str]:
    """Return the ids of the approval requests that a client's items answer."""
    answers = [read_approval(item) for item in items if item.kind == RESPONSE]
    return {answer.name for answer in answers if answer is not None}


def message_text(item: NewItem) -> str:
    """Return the text of a user's message, or an empty string for other items."""
    if item.kind != "message":
        return ""
    value = msgspec.json.decode(item.body, type=_Message)
    if value.role != "user":
        return ""
    parts = value.content if isinstance(value.content, list) else [{"text": value.content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))
