"""Which sessions a built-in tool may see: by default only those of its caller's own key."""

from typing import Literal

from msgspec.structs import replace

from holdfast.core.ids import SessionId, session_of_name
from holdfast.core.model.session import Session
from holdfast.ports.store import SessionQuery, SessionReader, SessionView
from holdfast.ports.tools import ToolCaller

Scope = Literal["key", "agent", "tenant"]
PAGE = 100
MAX_SESSIONS = 1000
"""The most sessions that a tool reads."""


def agent_of(key: str | None) -> str | None:
    """Return the agent that a key names: `agent:{name}:…`."""
    parts = (key or "").split(":")
    return parts[1] if len(parts) > 2 and parts[0] == "agent" else None


def is_visible(caller: Session, other: Session, scope: Scope) -> bool:
    """Whether a tool that runs for one session may see another of the same tenant."""
    if caller.tenant != other.tenant or not other.is_visible or other.deleted_at is not None:
        return False
    if other.id == caller.id:
        return True
    if scope == "tenant":
        return True
    if caller.key is None or other.key is None:
        return False
    if other.key == caller.key:
        return True
    agent = agent_of(caller.key)
    return scope == "agent" and agent is not None and agent_of(other.key) == agent


class SessionScope:
    """The sessions that one caller's tools may see."""

    def __init__(self, read: SessionReader, scope: Scope = "key") -> None:
        self._read = read
        self._scope = scope

    async def acting(self, caller: ToolCaller) -> ToolCaller:
        """Return the caller whose sessions count; an internal session acts for its parent."""
        session = caller.session
        if session.is_visible or session.parent_id is None:
            return caller
        view = await self._read.session(caller.tenant, session_id=session.parent_id)
        return replace(caller, session=view.session) if view is not None else caller

    async def find(self, caller: ToolCaller, session_id: str | None) -> SessionView | None:
        """Return a session by id, by default the caller's own; None if it may not be seen."""
        name = session_of_name(session_id) if session_id else caller.session.id
        if "\0" in name:
            return None
        view = await self._read.session(caller.tenant, session_id=name)
        if view is None or not is_visible(caller.session, view.session, self._scope):
            return None
        return view

    async def all(self, caller: ToolCaller, limit: int) -> list[SessionView]:
        """Return the sessions that a caller may see, the latest first."""
        key = caller.session.key
        if self._scope == "key" and key is None:
            own = await self.find(caller, None)
            return [own] if own is not None else []
        views: list[SessionView] = []
        after: SessionId | None = None
        for _ in range(MAX_SESSIONS // PAGE):
            query = SessionQuery(
                key=key if self._scope == "key" else None,
                generations=True,
                after=after,
                limit=PAGE,
            )
            page = await self._read.sessions(caller.tenant, query)
            views += [
                view for view in page if is_visible(caller.session, view.session, self._scope)
            ]
            if len(page) < PAGE or len(views) >= limit:
                break
            after = page[-1].session.id
        return views[:limit]
