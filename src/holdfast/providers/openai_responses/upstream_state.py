"""What a Responses server keeps for us, and how it is found out that it does not.

A conversation is compared with what was put into it. A server that is asked to go on from an
earlier response must have read it: the tokens that it reports tell whether it did.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.core.compaction.token_estimate import estimate_tokens
from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.conversation_integrity import Divergence, Mark, compare, marks_of
from holdfast.core.model.session import Usage
from holdfast.ports.provider import ModelCall
from holdfast.providers.http.upstream import Upstream, read_json

PAGE = 100
"""How many items of a conversation one request can list."""
NEWEST = f"limit={PAGE}&order=desc"
MARGIN = 16
"""Estimates are rough: a difference of so few tokens says nothing."""


class UpstreamState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server remembers for us: its names for it, and for calls that we name otherwise."""

    response: str | None = None
    conversation: str | None = None
    calls: dict[str, str] = {}
    tokens: int = 0
    """How many tokens the remembered history has, as the server counted them."""


_OWN_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs itself: the server only asks for them."""


def changes_nothing(body: Mapping[str, Any]) -> bool:
    """Whether a request leaves nothing at its server that anybody would notice if it came twice."""
    if body.get("conversation") is not None or body.get("previous_response_id") is not None:
        return False
    if "tools" not in body:
        return True
    given = body["tools"]
    tools = msgspec.json.decode(given) if isinstance(given, msgspec.Raw) else given
    return not isinstance(tools, list) or all(
        isinstance(tool, dict) and tool.get("type") in _OWN_TOOLS for tool in tools
    )


read_state = msgspec.json.Decoder(UpstreamState).decode


def history_tokens(usage: Usage | None, call: ModelCall) -> int:
    """Return how many tokens a later call will find remembered, as its server counts."""
    if usage is None:
        return 0
    made = usage.output_tokens - usage.reasoning_tokens
    return max(usage.input_tokens + made - estimate_tokens((), call.fields), 0)


def was_read(kept: UpstreamState, usage: Usage | None, call: ModelCall) -> bool | None:
    """Whether a server that was asked to go on from something has read it; None: nobody knows."""
    if usage is None or not kept.tokens or not usage.input_tokens:
        return None
    alone = estimate_tokens(call.new_items, call.fields)
    together = kept.tokens + alone
    if together < 2 * alone + MARGIN:
        return None
    return usage.input_tokens >= (alone + together) / 2


def ignored() -> ProviderFailure:
    """Return the failure of a server that answered without its memory."""
    return ProviderFailure(
        "the upstream accepted previous_response_id and did not read what it names",
        failure_class="stale_state",
        status=502,
        provider_code="previous_response_ignored",
        provider_type="server_error",
    )


async def verify(upstream: Upstream, conversation: str, expected: Sequence[bytes]) -> None:
    """Raise unless a conversation holds what it is expected to, and nothing else.

    The newest items are looked at first, and no more pages than what was put there can fill twice.
    """
    told = marks_of(msgspec.json.decode(one) for one in expected)
    held: list[Mark] = []
    after = ""
    for _ in range(2 * len(told) // PAGE + 1):
        page = await _listed(upstream, f"/conversations/{conversation}/items?{NEWEST}{after}")
        listed = page.get("data")
        items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        held[:0] = marks_of(reversed(items))
        is_whole = not page.get("has_more")
        last = items[-1].get("id") if items else None
        found = compare(told, held, is_whole=is_whole)
        if found is not None:
            raise _diverged(found, len(told), len(held))
        if is_whole or not isinstance(last, str):
            return
        after = f"&after={quote(last, safe='')}"


async def _listed(upstream: Upstream, path: str) -> dict[str, Any]:
    try:
        return read_json(await upstream.ask(path, method="GET", names_state=True))
    except ProviderFailure as failure:
        if failure.failure_class == "stale_state" and failure.provider_code is None:
            failure.provider_code = "conversation_expired"
        raise


def _diverged(found: Divergence, told: int, held: int) -> ProviderFailure:
    how: dict[str, Any] = {
        "conversation_items_missing": "has lost items",
        "conversation_items_added": "has items that we did not put there",
        "conversation_items_reordered": "has its items in another order",
        "conversation_items_changed": "has other items than we put there",
    }
    return ProviderFailure(
        f"the upstream's conversation {how[found]}: {held} of {told}",
        failure_class="stale_state",
        status=502,
        provider_code=found,
        provider_type="server_error",
    )
