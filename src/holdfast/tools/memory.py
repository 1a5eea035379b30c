"""`memory_search` and `memory_get`: find what was said, within what the caller may see."""

from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.search.item_text import item_text
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.search import SearchHit, SearchQuery
from holdfast.ports.store import ItemQuery
from holdfast.ports.tools import ToolCaller
from holdfast.tools.arguments import Arguments, BadArgument, read_flag, read_number, read_text
from holdfast.tools.scope import Scope, SessionScope, agent_of

MAX_TEXT = 4000
"""Characters of one item that `memory_get` returns."""


class SessionMemory:
    """Searches the sessions of a caller; see `tools.builtin.MemorySearch`."""

    def __init__(self, gateway: Gateway, scope: Scope = "key") -> None:
        self._gateway = gateway
        self._scope = scope
        self._sessions = SessionScope(gateway.read, scope)

    async def search(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return the best matches, each with the place that `get` takes."""
        role = read_text(arguments, "role")
        query = SearchQuery(
            text=read_text(arguments, "query") or "",
            roles=(role,) if role else (),
            include_hidden=read_flag(arguments, "include_hidden"),
            limit=read_number(arguments, "limit", 10, 50),
            **self._bounds(caller),
        )
        try:
            page = await self._gateway.store.search.search(caller.tenant, query)
        except InvalidInput as exc:
            raise BadArgument(exc.message) from exc
        return {"matches": [_match(hit) for hit in page.hits], "has_all_words": page.matches_all}

    def _bounds(self, caller: ToolCaller) -> dict[str, Any]:
        """Return where a caller may search."""
        session = caller.session
        agent = agent_of(session.key)
        if self._scope == "tenant":
            return {}
        if self._scope == "agent" and agent is not None:
            return {"key_prefix": f"agent:{agent}:"}
        if session.key is None:
            return {"session_id": session.id}
        return {"key": session.key}

    async def get(self, caller: ToolCaller, arguments: Arguments) -> dict[str, Any]:
        """Return an item and its neighbours."""
        name = read_text(arguments, "session_id")
        view = await self._sessions.find(caller, name)
        if view is None:
            raise BadArgument(f"there is no session {name}")
        sequence = read_number(arguments, "sequence", 1, 2**53)
        around = read_number(arguments, "around", 3, 20)
        query = ItemQuery(after=max(sequence - around - 1, 0), limit=2 * around + 1)
        items = await self._gateway.read.items(view.session, query)
        lines = []
        for item in items:
            found = item_text(item.body)
            if found is not None:
                text = found.text
                text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " [cut]"
                lines.append({"sequence": item.seq, "role": found.role, "text": text})
        return {"session_id": view.session.id, "items": lines}


def _match(hit: SearchHit) -> dict[str, Any]:
    return {
        "session_id": hit.session_id,
        "sequence": hit.seq,
        "generation": hit.generation,
        "role": hit.role,
        "at": datetime.fromtimestamp(hit.at, UTC).isoformat(timespec="seconds"),
        "text": hit.snippet,
    }
