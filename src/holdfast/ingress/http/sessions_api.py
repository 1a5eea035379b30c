"""The Sessions API: what there is, what it said, what is being done."""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, SessionNotFound
from holdfast.core.ids import SessionId, read_key
from holdfast.core.turn import Turn
from holdfast.engine.gateway import Gateway
from holdfast.ingress.http.asgi import AnyReply, Request, json_reply
from holdfast.ports.store import ItemQuery, SessionQuery, SessionView

MAX_PAGE = 100


class SessionsApi:
    """GET on /v1/sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> AnyReply:
        """Return a page of sessions."""
        asked = request.query()
        limit = read_limit(asked)
        key = asked.get("key")
        order = asked.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidInput("order is asc or desc")
        found = await self._gateway.read.sessions(
            request.tenant,
            SessionQuery(
                key=read_key(key) if key is not None else None,
                generations=asked.get("generations") == "true",
                after=SessionId(asked["after"]) if asked.get("after") else None,
                limit=limit + 1,
                order="asc" if order == "asc" else "desc",
            ),
        )
        return json_reply(page([session_value(view) for view in found], limit))

    async def get(self, request: Request) -> AnyReply:
        """Return one session."""
        return json_reply(session_value(await self._find(request)))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of a session's items."""
        view = await self._find(request)
        asked = request.query()
        limit = read_limit(asked)
        items = await self._gateway.read.items(view.session, ItemQuery(limit=limit + 1))
        return json_reply(page([msgspec.json.decode(item.body) for item in items], limit))

    async def _find(self, request: Request) -> SessionView:
        name = request.params["id"]
        view = await self._gateway.read.session(request.tenant, session_id=SessionId(name))
        if view is None:
            raise SessionNotFound(f"no session {name}")
        return view


def read_limit(asked: dict[str, str], default: int = 20) -> int:
    """Return a page's size."""
    raw = asked.get("limit")
    if raw is None:
        return default
    if not (raw.isascii() and raw.isdecimal()) or not 1 <= int(raw) <= MAX_PAGE:
        raise InvalidInput(f"limit is a number from 1 to {MAX_PAGE}")
    return int(raw)


def page(found: "list[dict[str, Any]]", limit: int) -> dict[str, Any]:
    """Return a page as OpenAI's lists are; one entry more than asked says that more follow."""
    shown = found[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0].get("id") if shown else None,
        "last_id": shown[-1].get("id") if shown else None,
        "has_more": len(found) > limit,
    }


def session_value(view: SessionView) -> dict[str, Any]:
    """Return a session as the contract shows it."""
    session = view.session
    return {
        "id": session.id,
        "object": "session",
        "key": session.key,
        "generation": session.generation,
        "previous_session_id": session.previous_session_id,
        "status": view.status,
        "active_turn_id": session.active_turn_id,
        "queued_turns": view.queued_turns,
        "last_turn": _last_turn(view.last_turn),
        "created_at": int(session.created_at),
        "last_user_activity_at": _seconds(session.last_user_activity_at),
        "item_count": session.item_count,
        "turn_count": session.turn_count,
        "usage": {
            "input_tokens": session.input_tokens,
            "cached_tokens": session.cached_tokens,
            "output_tokens": session.output_tokens,
            "reasoning_tokens": session.reasoning_tokens,
            "total_tokens": session.input_tokens + session.output_tokens,
        },
        "metadata": msgspec.Raw(session.metadata),
    }


def _last_turn(turn: Turn | None) -> dict[str, Any] | None:
    if turn is None or turn.outcome is None:
        return None
    lasted = None
    if turn.ended_at is not None and turn.started_at is not None:
        lasted = round((turn.ended_at - turn.started_at) * 1000)
    return {
        "id": turn.id,
        "status": turn.outcome,
        "error": {"code": turn.error_code, "message": turn.error_message}
        if turn.error_code
        else None,
        "started_at": _seconds(turn.started_at),
        "ended_at": _seconds(turn.ended_at),
        "duration_ms": lasted,
    }


def _seconds(moment: float | None) -> int | None:
    return int(moment) if moment is not None else None
