"""The Sessions API: what there is, what it said, what is being done."""

from typing import Any

import msgspec

from holdfast.core.errors import SessionNotFound
from holdfast.core.ids import SessionId, read_key
from holdfast.core.turn import Turn
from holdfast.engine.gateway import Gateway
from holdfast.ingress.http.asgi import AnyReply, Request, json_reply
from holdfast.ingress.http.pages import page, read_choice, read_page
from holdfast.ingress.http.transcripts import Transcripts
from holdfast.ports.store import SessionQuery, SessionView


class SessionsApi:
    """GET on /v1/sessions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transcripts = Transcripts(gateway)

    async def list(self, request: Request) -> AnyReply:
        """Return a page of sessions."""
        asked, wanted = request.query(), read_page(request)
        key = asked.get("key")
        found = await self._gateway.read.sessions(
            request.tenant,
            SessionQuery(
                key=read_key(key) if key is not None else None,
                generations=asked.get("generations") == "true",
                after=SessionId(wanted.after) if wanted.after else None,
                limit=wanted.limit + 1,
                order=wanted.order,
            ),
        )
        names = [view.session.id for view in found]
        return json_reply(page([session_value(view) for view in found], names, wanted.limit))

    async def get(self, request: Request) -> AnyReply:
        """Return one session."""
        return json_reply(session_value(await self._find(request)))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of a session's items."""
        asked = read_page(request, order="asc")
        view = await self._find(request)
        is_log = read_choice(request.query(), "view", ("visible", "log")) == "log"
        return json_reply(await self._transcripts.listed(view.session, asked, is_log=is_log))

    async def _find(self, request: Request) -> SessionView:
        name = request.params["id"]
        view = await self._transcripts.session(request.tenant, SessionId(name))
        if view is None:
            raise SessionNotFound(f"no session {name}")
        return view


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
