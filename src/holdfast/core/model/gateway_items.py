"""Items of tools that the gateway runs: stored as a call and its completion.

Upstreams are shown a function call and its output, clients one `mcp_call`. A call that needs an
approval is shown to clients as an `mcp_approval_request`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.model.items import NewItem, read_item
from holdfast.core.model.synthetic_outputs import NOT_APPROVED, OUTCOME_UNKNOWN

CALL = "gateway_call"
COMPLETION = "gateway_call_output"
APPROVAL = "gateway_approval"
TOOL_LIST = "gateway_list_tools"
WORDS = "gateway_words"
REMINDER = "gateway_reminder"
ATTACHMENT = "gateway_attachment"
GATEWAY_KINDS = frozenset({CALL, COMPLETION, APPROVAL, TOOL_LIST, WORDS, REMINDER, ATTACHMENT})
NOT_LISTED = frozenset({CALL, WORDS, REMINDER, ATTACHMENT})
"""Kinds that lists do not show; a call is shown by its completion or its approval request."""
APPROVAL_PREFIX = "mcpr_"
"""The prefix of approval request ids, among the calls for which a lane is held."""
APPROVAL_SUFFIX = "q"
"""Their suffix: no sequence number ends with it, so the store always finds them by their id."""
MARK = b'"type":"gateway_'
"""A substring of the body of each of these items."""
_USER = b'"role":"user"'

_encode = msgspec.json.Encoder().encode


def approval_request_id(random_id: str) -> str:
    """Return the id of an approval request, made from a random id."""
    return random_id + APPROVAL_SUFFIX


class _Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """An item; its type is written first."""


class GatewayCall(_Item, frozen=True, kw_only=True, tag=CALL):
    """A call that the model made, committed before its tool runs."""

    id: str
    """The id of this item; with an approval, the id of its request."""
    item_id: str
    """The id of the `mcp_call` that clients see."""
    call_id: str
    function: str
    """The name that the model called."""
    server_label: str
    name: str
    """The name of the tool at its server."""
    arguments: str
    code: str | None = None
    """The code that an approval by text must repeat, or None if no approval is needed."""
    digest: str = ""
    """The digest of the tool's description and parameters at the time of the call."""

    @property
    def approval_id(self) -> str | None:
        """The id of the approval request, if the call needs one."""
        return self.id if self.code is not None else None


class GatewayCompletion(_Item, frozen=True, kw_only=True, tag=COMPLETION):
    """The outcome of a call; it repeats the call, so that it can be shown alone."""

    id: str
    """The id of the `mcp_call` that clients see."""
    call_id: str
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: str | None = None


class GatewayApproval(_Item, frozen=True, kw_only=True, tag=APPROVAL):
    """The answer to an approval request."""

    id: str
    call_id: str
    """The id of the approval request: the lane is held for it as for the output of a call."""
    approve: bool
    reason: str | None = None
    by: str | None = None
    """Who answered."""
    name: str | None = None
    """The display name of the person who answered."""


class ToolList(_Item, frozen=True, kw_only=True, tag=TOOL_LIST):
    """The tools of a server, as they were when a turn first used it."""

    id: str
    server_label: str
    tools: list[msgspec.Raw]
    error: str | None = None
    """Why the server has no tools, if it could not be asked."""


class GatewayWords(_Item, frozen=True, kw_only=True, tag=WORDS):
    """Text that a plain-text client was shown or sent; the model does not see it.

    It is matched against the history of a client that sends it back.
    """

    id: str
    role: str
    content: str


class GatewayReminder(_Item, frozen=True, kw_only=True, tag=REMINDER):
    """An approval request that is shown again because an answer left it open."""

    id: str
    call: GatewayCall


class GatewayAttachment(_Item, frozen=True, kw_only=True, tag=ATTACHMENT):
    """A file of a chat message, by the platform's reference; the run that needs it downloads it."""

    id: str
    channel: str
    reference: str
    kind: Literal["image", "audio", "file"]
    name: str = ""
    media_type: str = ""
    size: int = 0


GatewayItem = (
    GatewayCall
    | GatewayCompletion
    | GatewayApproval
    | ToolList
    | GatewayWords
    | GatewayReminder
    | GatewayAttachment
)
_decode: Callable[[bytes], GatewayItem] = msgspec.json.Decoder(GatewayItem).decode


class _Kind(msgspec.Struct):
    type: str | None = None
    role: str | None = None


_read_kind = msgspec.json.Decoder(_Kind).decode


def store_item(item: GatewayItem) -> NewItem:
    """Return an item as the log stores it."""
    return read_item(_encode(item))


def words_item(item_id: str, role: str, text: str) -> NewItem:
    """Return text as a stored item with the fingerprint of a message that has the same text."""
    return store_item(GatewayWords(id=item_id, role=role, content=text))


def load_item(body: bytes) -> GatewayItem:
    """Return what `store_item` stored."""
    return _decode(body)


def complete(call: GatewayCall, output: str | None, error: str | None = None) -> GatewayCompletion:
    """Return the completion of a call."""
    return GatewayCompletion(
        id=call.item_id,
        call_id=call.call_id,
        server_label=call.server_label,
        name=call.name,
        arguments=call.arguments,
        approval_request_id=call.approval_id,
        output=output,
        error=error,
    )


# ── what upstreams are shown ────────────────────────────────────────────────────────────────


def to_function_item(body: bytes) -> tuple[str, bytes] | None:
    """Return an item as the function call or output sent to a model, or None if it is not sent."""
    try:
        item = load_item(body)
    except msgspec.ValidationError:
        return None  # not created by the gateway
    if isinstance(item, GatewayCall):
        value = {
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.function,
            "arguments": item.arguments,
        }
        return "function_call", _encode(value)
    if isinstance(item, GatewayCompletion):
        output = item.output or item.error or ""
        if item.error and item.output:
            output = f"{item.error}\n{item.output}"
        value = {"type": "function_call_output", "call_id": item.call_id, "output": output}
        return "function_call_output", _encode(value)
    return None


def unanswered_output(body: bytes, approvals: Iterable[bytes]) -> str:
    """Return the output that the model is shown for a call without an outcome.

    A call that waited for an approval never ran. Any other may have run.
    """
    call = load_item(body)
    assert isinstance(call, GatewayCall)
    if call.code is None:
        return OUTCOME_UNKNOWN
    for each in approvals:
        answer = load_item(each)
        assert isinstance(answer, GatewayApproval)
        if answer.call_id == call.id:
            return OUTCOME_UNKNOWN if answer.approve else NOT_APPROVED
    return NOT_APPROVED


# ── what clients are shown ──────────────────────────────────────────────────────────────────


def mcp_call(completion: GatewayCompletion) -> dict[str, Any]:
    """Return a completion as the `mcp_call` item of the Responses API."""
    return {
        "id": completion.id,
        "type": "mcp_call",
        "status": "failed" if completion.error else "completed",
        "server_label": completion.server_label,
        "name": completion.name,
        "arguments": completion.arguments,
        "approval_request_id": completion.approval_request_id,
        "output": completion.output,
        "error": completion.error,
    }


def begun_mcp_call(call: GatewayCall) -> dict[str, Any]:
    """Return the `mcp_call` item of a call that has not ended."""
    begun = mcp_call(complete(call, None))
    return {**begun, "status": "in_progress"}


def approval_request(call: GatewayCall) -> dict[str, Any]:
    """Return a call that needs an approval as the `mcp_approval_request` item."""
    return {
        "id": call.id,
        "type": "mcp_approval_request",
        "server_label": call.server_label,
        "name": call.name,
        "arguments": call.arguments,
        "approval_code": call.code,
    }


def mcp_list_tools(listed: ToolList) -> dict[str, Any]:
    """Return the tools of a server as the `mcp_list_tools` item."""
    return {
        "id": listed.id,
        "type": "mcp_list_tools",
        "server_label": listed.server_label,
        "tools": listed.tools,
        "error": listed.error,
    }


def client_item(body: bytes) -> bytes | None:
    """Return a stored item as lists show it, or None if it is not listed."""
    item = load_item(body)
    if isinstance(item, GatewayCompletion):
        return _encode(mcp_call(item))
    if isinstance(item, GatewayApproval):
        value = {
            "id": item.id,
            "type": "mcp_approval_response",
            "approval_request_id": item.call_id,
            "approve": item.approve,
            "reason": item.reason,
        }
        return _encode(value)
    if isinstance(item, ToolList):
        return _encode(mcp_list_tools(item))
    if isinstance(item, GatewayCall) and item.code is not None:
        return _encode(approval_request(item))
    return None


def shown_call(body: bytes) -> str | None:
    """Return the id of the `mcp_call` by which clients see a call or its completion."""
    item = load_item(body)
    if isinstance(item, GatewayCall):
        return item.item_id
    return item.id if isinstance(item, GatewayCompletion) else None


def is_listed(kind: str, body: bytes) -> bool:
    """Whether lists show a stored item; a call is shown by its completion or its request."""
    return kind not in NOT_LISTED or client_item(body) is not None


def is_user_message(body: bytes) -> bool:
    """Whether an item is a message of the user."""
    return _USER in body and _read_kind(body).role == "user"


def client_output(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Return the items of an answer as clients see them: each call once, at its place."""
    # Input that joined the turn is not part of its answer.
    if any(_USER in body for body in bodies):
        bodies = [body for body in bodies if not is_user_message(body)]
    if not any(MARK in body[:32] for body in bodies):
        return bodies
    kinds = [_read_kind(body).type or "" for body in bodies]
    ended: dict[str, bytes] = {}
    for kind, body in zip(kinds, bodies, strict=True):
        if kind == COMPLETION:
            completion = load_item(body)
            ended[completion.id] = _encode(mcp_call(completion))  # type: ignore[arg-type]
    return list(_in_place(kinds, bodies, ended))


def _in_place(
    kinds: Sequence[str], bodies: Sequence[bytes], ended: dict[str, bytes]
) -> Iterable[bytes]:
    for kind, body in zip(kinds, bodies, strict=True):
        if kind not in GATEWAY_KINDS:
            yield body
            continue
        item = load_item(body)
        shown: bytes | None = None
        if isinstance(item, GatewayCompletion):
            # Already shown at the place of its call, unless the call is part of an earlier answer.
            shown = ended.pop(item.id, None)
        elif isinstance(item, GatewayCall) and item.code is None:
            shown = ended.pop(item.item_id, None)
        elif isinstance(item, GatewayReminder):
            shown = _encode(approval_request(item.call))
        elif not isinstance(item, GatewayApproval | GatewayWords):
            shown = client_item(body)
        if shown is not None:
            yield shown
