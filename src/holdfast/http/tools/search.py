"""GET /v1/search: full-text search over the caller's sessions, all generations."""

from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import SessionId, Tenant, read_key, session_of_name
from holdfast.core.search.item_text import ROLES
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.pagination import UnknownCursor, read_flag, read_limit
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.search import SearchHit, SearchQuery

MAX_PREFIX = 512


class SearchOff(NotFound):
    """Search is off: the gateway does not index the log."""

    code = "search_off"


class SearchApi:
    """Search in the log."""

    def __init__(self, gateway: Gateway, *, is_on: bool) -> None:
        self._gateway = gateway
        self._is_on = is_on

    async def _place(self, tenant: Tenant, after: str | None) -> int | None:
        """Return the place of the hit that a list continues after.

        Places count the items of all tenants, so the id of a hit names an item of its tenant.
        Earlier versions sent places: those of the tenant's own items are still accepted.
        """
        if after is None:
            return None
        index, place = self._gateway.store.search, None
        name, _, number = after.removeprefix("hit_").rpartition(":")
        at = _number(number)
        if at is not None and name:
            place = await index.hit_place(tenant, SessionId(name), at)
        elif at is not None:
            place = await index.own_hit(tenant, at)
        if place is None:
            raise UnknownCursor(f"after: there is no hit {after[:256]!r}")
        return place

    async def search(self, request: Request) -> AnyReply:
        """Return items that have the words of `q`, with highlighted snippets."""
        if not self._is_on:
            raise SearchOff("search is off in this gateway: set search.enabled")
        query = request.query()
        if "q" not in query:
            raise InvalidInput("q is needed: the words to search for", param="q")
        key, session_id = query.get("key"), query.get("session_id")
        page = await self._gateway.store.search.search(
            request.tenant,
            SearchQuery(
                text=query["q"],
                key=read_key(key) if key is not None else None,
                key_prefix=_read_prefix(query.get("key_prefix")),
                session_id=session_of_name(session_id) if session_id is not None else None,
                roles=_read_roles(request.query_list("role")),
                since=_read_time(query, "since"),
                until=_read_time(query, "until"),
                include_hidden=read_flag(query, "include_hidden"),
                limit=read_limit(query),
                after=await self._place(request.tenant, query.get("after")),
            ),
        )
        hits = [hit_value(hit) for hit in page.hits]
        return json_reply(
            {
                "object": "list",
                "data": hits,
                "first_id": hits[0]["id"] if hits else None,
                "last_id": hits[-1]["id"] if hits else None,
                "has_more": page.has_more,
                "matches": "all" if page.matches_all else "any",
            }
        )


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) < 19
    return int(text) if is_number else None


def hit_value(hit: SearchHit) -> dict[str, Any]:
    """Return a hit as JSON."""
    return {
        "id": f"hit_{hit.session_id}:{hit.seq}",
        "object": "search.hit",
        "session_id": hit.session_id,
        "key": hit.key,
        "generation": hit.generation,
        "seq": hit.seq,
        "item_id": hit.item_id,
        "role": hit.role,
        "created_at": int(hit.at),
        "hidden": hit.is_hidden,
        "snippet": {"text": hit.snippet, "highlights": [list(span) for span in hit.highlights]},
    }


def _read_prefix(prefix: str | None) -> str | None:
    if prefix is not None and (len(prefix) > MAX_PREFIX or "\0" in prefix):
        problem = f"key_prefix: at most {MAX_PREFIX} characters, without NUL"
        raise InvalidInput(problem, param="key_prefix")
    return prefix


def _read_roles(roles: list[str]) -> tuple[str, ...]:
    for role in roles:
        if role not in ROLES:
            problem = f"role must be one of {', '.join(ROLES)}, not {role!r}"
            raise InvalidInput(problem, param="role")
    return tuple(roles)


def _read_time(query: dict[str, str], name: str) -> float | None:
    """Return a time: seconds since 1970, or a date or time of ISO 8601, UTC if it has no zone."""
    text = query.get(name)
    if text is None:
        return None
    try:
        if text.isascii() and text.isdecimal() and len(text) < 12:
            return float(text)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name} must be seconds since 1970 or an ISO time such as 2026-11-16T08:00Z",
            param=name,
        ) from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
