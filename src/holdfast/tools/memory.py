"""`memory_search` and `memory_get`: search the sessions that their caller may see."""

from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.search.item_text import item_text
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.search import SearchQuery
from holdfast.ports.store import ItemQuery
from holdfast.ports.tools import ToolCaller
from holdfast.tools.scope import Scope, SessionScope, agent_of

Arguments = dict[str, object]

MAX_MATCHES, MAX_AROUND = 50, 20
MAX_TEXT = 4000
"""Characters of one item that `get` returns."""


class SessionMemory:
    """Searches the items of the sessions that a caller may see."""

    def __init__(self, gateway: Gateway, scope: Scope = "key") -> None:
        self._gateway = gateway
        self._scope = scope
        self._sessions = SessionScope(gateway.read, scope)

    async def search(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return matching items, with ids for `get`."""
        role, text = arguments.get("role"), arguments.get("query")
        if not isinstance(text, str):
            raise InvalidInput("query must be text")
        query = SearchQuery(
            text=text,
            **self._limits_of(caller),
            roles=(role,) if isinstance(role, str) else (),
            include_hidden=arguments.get("include_hidden") is True,
            limit=_count(arguments, "limit", 10, MAX_MATCHES),
        )
        page = await self._gateway.store.search.search(caller.tenant, query)
        return {
            "matches_all_words": page.matches_all,
            "matches": [
                {
                    "session_id": hit.session_id,
                    "key": hit.key,
                    "generation": hit.generation,
                    "sequence": hit.seq,
                    "role": hit.role,
                    "at": datetime.fromtimestamp(hit.at, UTC).isoformat(timespec="seconds"),
                    "text": hit.snippet,
                }
                for hit in page.hits
            ],
        }

    async def get(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return an item and its neighbours."""
        name = arguments.get("session_id")
        sequence = _count(arguments, "sequence", 0, 2**53)
        around = _count(arguments, "around", 3, MAX_AROUND)
        view = await self._sessions.find(caller, name) if isinstance(name, str) else None
        if view is None:
            raise InvalidInput(f"there is no session {name}")
        query = ItemQuery(after=max(sequence - around - 1, 0), limit=2 * around + 1)
        lines: list[dict[str, Any]] = []
        for item in await self._gateway.read.items(view.session, query):
            found = item_text(item.body)
            if found is not None and item.seq <= sequence + around:
                text = found.text
                text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " [cut]"
                lines.append({"sequence": item.seq, "role": found.role, "text": text})
        return {"session_id": view.session.id, "items": lines}

    def _limits_of(self, caller: ToolCaller) -> dict[str, Any]:
        """Return the filters that keep a query within the caller's scope."""
        session = caller.session
        if self._scope == "tenant":
            return {}
        agent = agent_of(session.key)
        if self._scope == "agent" and agent is not None:
            return {"key_prefix": f"agent:{agent}:"}
        if session.key is not None:
            return {"key": session.key}
        return {"session_id": session.id}


def _count(arguments: Arguments, name: str, default: int, maximum: int) -> int:
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} must be a whole number")
    return min(value, maximum)
