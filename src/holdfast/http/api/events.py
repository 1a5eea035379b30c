"""Event feeds over HTTP: facts as server-sent events, from any place on, as long as one stays."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.core.errors import SessionNotFound
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.changes import Event
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.event_feed import EventFeed
from holdfast.http.api.session_items import Transcripts
from holdfast.http.request.pagination import UnknownCursor
from holdfast.http.server.sse import KEEP_ALIVE
from holdfast.http.server.types import AnyReply, Request, StreamReply
from holdfast.ports.store import Place

LATEST = "latest"
MAX_NUMBER = 2**63 - 1
_PLACE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_encode = msgspec.json.Encoder().encode


class EventsApi:
    """GET /v1/events and GET /v1/sessions/{id}/events."""

    def __init__(self, gateway: Gateway, streams: StreamSettings | None = None) -> None:
        self._gateway = gateway
        self._transcripts = Transcripts(gateway)
        self._feed = EventFeed(gateway.read)
        self._quiet_seconds = (streams or StreamSettings()).keep_alive_seconds

    def close(self) -> None:
        """Have every follower go, so that the server can stop."""
        self._feed.close()

    async def all(self, request: Request) -> AnyReply:
        """Follow everything a tenant may see."""
        asked = _asked(request)
        if asked == LATEST:
            after = await self._gateway.read.feed_end(request.tenant)
        else:
            after = read_place(asked)
        self._feed.check_room()
        return StreamReply(self._everything(request.tenant, after))

    async def of_session(self, request: Request) -> AnyReply:
        """Follow one session, until it is erased."""
        asked, name = _asked(request), SessionId(request.params["id"])
        view = await self._transcripts.session(request.tenant, name)
        if view is None:
            raise SessionNotFound(f"no session {name}")
        newest = view.session.event_no
        after = newest if asked == LATEST else read_number(asked)
        if after > newest:
            raise UnknownCursor(f"after: session {name} has told {newest} events, not {after}")
        self._feed.check_room()
        return StreamReply(self._session(request.tenant, name, after))

    async def _everything(self, tenant: Tenant, after: Place) -> AsyncIterator[bytes]:
        yield KEEP_ALIVE
        following = self._feed.follow(tenant, after, quiet_seconds=self._quiet_seconds)
        async with aclosing(following):
            async for batch in following:
                told = [as_sse(one.event, write_place(one.place)) for one in batch]
                yield b"".join(told) or KEEP_ALIVE

    async def _session(self, tenant: Tenant, name: SessionId, after: int) -> AsyncIterator[bytes]:
        yield KEEP_ALIVE
        following = self._feed.follow_session(
            tenant, name, after, quiet_seconds=self._quiet_seconds
        )
        async with aclosing(following):
            async for batch in following:
                yield b"".join(as_sse(one, str(one.no)) for one in batch) or KEEP_ALIVE


def _asked(request: Request) -> str:
    """Return behind which place to begin; a browser that comes back says it in its own header."""
    return request.query().get("after") or request.header(b"last-event-id") or "0"


def read_number(raw: str) -> int:
    """Return the number of a session's event."""
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 20 and int(raw) <= MAX_NUMBER):
        raise UnknownCursor(f"after: {raw[:64]!r} is not the number of an event")
    return int(raw)


def read_place(raw: str) -> Place:
    """Return the place that `write_place` wrote; 0 is the beginning."""
    if raw == "0":
        return Place()
    match = _PLACE.fullmatch(raw)
    if match is None or max(int(match[1]), int(match[2])) > MAX_NUMBER:
        raise UnknownCursor(f"after: {raw[:64]!r} is not the id of an event of this feed")
    return Place(int(match[1]), int(match[2]))


def write_place(place: Place) -> str:
    """Return a place as the cursor of a feed."""
    return f"{place.txid}-{place.position}"


def event_value(event: Event, cursor: str) -> dict[str, Any]:
    """Return a fact as those who follow it get it."""
    return {
        "id": cursor,
        "object": "event",
        "type": event.kind,
        "session_id": event.session_id,
        "turn_id": event.turn_id,
        "number": event.no,
        "created_at": event.at,
        "data": msgspec.Raw(event.body),
    }


def as_sse(event: Event, cursor: str) -> bytes:
    """Return a fact as one server-sent event."""
    body = _encode(event_value(event, cursor))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (cursor.encode(), event.kind.encode(), body)
