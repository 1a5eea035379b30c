"""The state that a Responses server stores for us, and the checks that it really uses it.

A conversation is compared with what was put into it. Whether a server read the response that a call
continues from shows in the token counts that it reports.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.core.compaction.token_estimate import estimate_tokens
from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.conversation_integrity import (
    Divergence,
    Fingerprint,
    compare,
    fingerprints,
)
from holdfast.core.model.items import item_value
from holdfast.core.model.session import Usage
from holdfast.ports.provider import ModelCall
from holdfast.providers.http.upstream import Upstream, read_json

PAGE_SIZE = 100
"""How many items of a conversation one request lists."""
NEWEST_FIRST = f"limit={PAGE_SIZE}&order=desc"
MARGIN_TOKENS = 16
"""Estimates are rough, so a smaller difference proves nothing."""


class UpstreamState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server has stored: its ids, and the calls that have another id there."""

    response: str | None = None
    conversation: str | None = None
    calls: dict[str, str] = {}
    tokens: int = 0
    """The number of tokens of the stored history, as counted by the server."""


_CLIENT_TOOLS = ("function", "custom")
"""Tools that the client runs; the server only requests them. A tuple, because a client may send any
value as type, even an unhashable one."""


def changes_nothing(body: Mapping[str, Any]) -> bool:
    """Return whether a request may be sent twice without side effects at the server."""
    if body.get("conversation") is not None or body.get("previous_response_id") is not None:
        return False
    if "tools" not in body:
        return True
    given = body["tools"]
    tools = msgspec.json.decode(given) if isinstance(given, msgspec.Raw) else given
    return not isinstance(tools, list) or all(
        isinstance(tool, dict) and tool.get("type") in _CLIENT_TOOLS for tool in tools
    )


read_state = msgspec.json.Decoder(UpstreamState).decode


def history_tokens(usage: Usage | None, call: ModelCall) -> int:
    """Return how many tokens of history the server has stored for the next call."""
    if usage is None:
        return 0
    kept_output = usage.output_tokens - usage.reasoning_tokens
    return max(usage.input_tokens + kept_output - estimate_tokens((), call.fields), 0)


def was_read(state: UpstreamState, usage: Usage | None, call: ModelCall) -> bool | None:
    """Return whether a server read the state that a call continues from, or None if unclear."""
    if usage is None or not state.tokens or not usage.input_tokens:
        return None
    new = estimate_tokens(call.new_items, call.fields)
    total = state.tokens + new
    if total < 2 * new + MARGIN_TOKENS:
        return None
    return usage.input_tokens >= (new + total) / 2


def state_ignored() -> ProviderFailure:
    """Return the failure for a server that answered without its stored state."""
    return ProviderFailure(
        "the upstream accepted previous_response_id and did not read what it names",
        failure_class="stale_state",
        status=502,
        provider_code="previous_response_ignored",
        provider_type="server_error",
    )


async def verify(upstream: Upstream, conversation: str, expected: Sequence[bytes]) -> None:
    """Raise unless a conversation contains exactly the expected items.

    Pages are read newest first, at most twice as many as the expected items need.
    """
    expected_prints = fingerprints(map(item_value, expected))
    actual: list[Fingerprint] = []
    after = ""
    for _ in range(2 * len(expected_prints) // PAGE_SIZE + 1):
        page = await _list_items(
            upstream, f"/conversations/{conversation}/items?{NEWEST_FIRST}{after}"
        )
        listed = page.get("data")
        entries = listed if isinstance(listed, list) else []
        items = [entry for entry in entries if isinstance(entry, dict)]
        actual[:0] = fingerprints(reversed(items))
        is_whole = not page.get("has_more")
        last = items[-1].get("id") if items else None
        divergence = compare(expected_prints, actual, is_whole=is_whole)
        if divergence is not None:
            raise _diverged(divergence, len(expected_prints), len(actual))
        if is_whole or not isinstance(last, str):
            return
        after = f"&after={quote(last, safe='')}"


async def _list_items(upstream: Upstream, path: str) -> dict[str, Any]:
    try:
        return read_json(await upstream.fetch(path, method="GET", names_state=True))
    except ProviderFailure as failure:
        if failure.failure_class == "stale_state" and failure.provider_code is None:
            failure.provider_code = "conversation_expired"
        raise


def _diverged(divergence: Divergence, expected: int, actual: int) -> ProviderFailure:
    reasons: dict[Divergence, str] = {
        "conversation_items_missing": "has lost items",
        "conversation_items_added": "has items that we did not put there",
        "conversation_items_reordered": "has its items in another order",
        "conversation_items_changed": "has other items than we put there",
    }
    return ProviderFailure(
        f"the upstream's conversation {reasons[divergence]}: {actual} items, expected {expected}",
        failure_class="stale_state",
        status=502,
        provider_code=divergence,
        provider_type="server_error",
    )
