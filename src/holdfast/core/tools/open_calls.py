"""The calls of a turn that have no outcome yet, by who must act: the gateway or the client."""

from collections.abc import Iterable

import msgspec

from holdfast.core.model.gateway_items import (
    APPROVAL,
    CALL,
    COMPLETION,
    GatewayApproval,
    GatewayCall,
    GatewayCompletion,
    load_item,
)
from holdfast.core.model.items import StoredItem, read_role
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS, OUTPUT_OF


class OpenCalls(msgspec.Struct, frozen=True):
    """The calls of a turn that have no outcome yet."""

    calls: tuple[GatewayCall, ...] = ()
    """Calls of the gateway's tools, in the order in which the model made them."""
    approvals: dict[str, GatewayApproval] = {}
    """The answers to approval requests, by the id of the request."""
    client_calls: tuple[str, ...] = ()
    """The ids of calls that only the client's tools can answer."""


def find_open_calls(items: Iterable[StoredItem]) -> OpenCalls:
    """Return the calls that the visible items of a turn leave open."""
    calls: dict[str, GatewayCall] = {}
    approvals: dict[str, GatewayApproval] = {}
    client_calls: list[str] = []
    for item in items:
        if item.kind in (CALL, COMPLETION, APPROVAL):
            stored = load_item(item.body)
            if isinstance(stored, GatewayCall):
                calls[stored.item_id] = stored
            elif isinstance(stored, GatewayCompletion):
                calls.pop(stored.id, None)
            elif isinstance(stored, GatewayApproval):
                # The first answer wins.
                approvals.setdefault(stored.call_id, stored)
        elif item.kind in OUTPUT_OF and item.call_id and not item.is_partial:
            client_calls.append(item.call_id)
        elif item.kind in OUTPUT_KINDS or _is_users(item):
            # The client has seen the calls before this point and no longer has to answer them.
            client_calls.clear()
    return OpenCalls(tuple(calls.values()), approvals, tuple(client_calls))


def _is_users(item: StoredItem) -> bool:
    return item.kind == "message" and read_role(item.body).role != "assistant"


class ToolUse(msgspec.Struct, frozen=True):
    """How much of its limits a turn has used, over all its runs."""

    steps: int = 0
    """Answers of the model that called tools of the gateway."""
    calls: int = 0
    output_bytes: int = 0


def count_use(items: Iterable[StoredItem]) -> ToolUse:
    """Return how much of its limits a turn has used, given its items."""
    steps = calls = output_bytes = 0
    is_calling = False
    for item in items:
        if item.kind == CALL:
            # Parallel calls are one step.
            steps += not is_calling
            is_calling = True
        elif item.kind == COMPLETION:
            completion = load_item(item.body)
            assert isinstance(completion, GatewayCompletion)
            calls += 1
            output_bytes += len((completion.output or completion.error or "").encode())
            is_calling = False
    return ToolUse(steps, calls, output_bytes)
