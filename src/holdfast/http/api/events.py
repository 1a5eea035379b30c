"""Event feeds: facts as server-sent events, resumable from any cursor."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.core.errors import SessionNotFound
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.changes import Event
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.event_feed import EventFeed, TooManyFollowers
from holdfast.http.api.session_items import SessionItems
from holdfast.http.request.pagination import UnknownCursor
from holdfast.http.server.sse import KEEP_ALIVE
from holdfast.http.server.types import AnyReply, IteratorReply, Request
from holdfast.ports.store import FeedPlace

LATEST = "latest"
MAX_NUMBER = 2**63 - 1
MAX_FEEDS_PER_TENANT = 128
"""Open feeds of one tenant; the process has at most 512."""
_POSITION = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_encode = msgspec.json.Encoder().encode


class EventsApi:
    """GET /v1/events and GET /v1/sessions/{id}/events."""

    def __init__(
        self,
        gateway: Gateway,
        until_revoked: Callable[[Request], Awaitable[None]],
        streams: StreamSettings | None = None,
    ) -> None:
        self._gateway = gateway
        self._until_revoked = until_revoked
        self._open_feeds: Counter[Tenant] = Counter()
        self._items = SessionItems(gateway)
        self._feed = EventFeed(gateway.read)
        self._keep_alive_seconds = (streams or StreamSettings()).keep_alive_seconds

    def close(self) -> None:
        """End every feed, so that the server can stop."""
        self._feed.close()

    async def all(self, request: Request) -> AnyReply:
        """Stream the events of all sessions of the tenant."""
        cursor = _cursor(request)
        if cursor == LATEST:
            after = await self._gateway.read.log_end()
        else:
            after = await self._place(request.tenant, cursor)
        return self._reply(request.tenant, self._all_events(request.tenant, after))

    async def _place(self, tenant: Tenant, cursor: str) -> FeedPlace:
        """Return the position that a cursor names; 0 is the beginning.

        Positions count what all tenants did, so a cursor names an event of its tenant. Earlier
        versions sent positions: those of the tenant's own events are still accepted.
        """
        if cursor == "0":
            return FeedPlace()
        read, place = self._gateway.read, None
        name, _, number = cursor.rpartition(":")
        position = _POSITION.fullmatch(cursor)
        if name:
            place = await read.event_place(tenant, SessionId(name), parse_event_number(number))
        elif position is not None and max(int(position[1]), int(position[2])) <= MAX_NUMBER:
            place = await read.own_place(tenant, FeedPlace(int(position[1]), int(position[2])))
        if place is None:
            raise UnknownCursor(f"after: {cursor[:64]!r} is not the id of an event of this feed")
        return place

    async def of_session(self, request: Request) -> AnyReply:
        """Stream the events of one session until it is erased."""
        cursor, view = _cursor(request), await self._items.named(request)
        if view is None:
            raise SessionNotFound(f"no session {request.params['id']}")
        session_id = view.session.id
        newest = view.session.event_no
        after = newest if cursor == LATEST else parse_event_number(cursor)
        if after > newest:
            raise UnknownCursor(f"after: session {session_id} has {newest} events, not {after}")
        events = self._session_events(request.tenant, session_id, after)
        return self._reply(request.tenant, events)

    def _reply(self, tenant: Tenant, events: AsyncIterator[bytes]) -> AnyReply:
        """Count a feed towards its tenant for as long as its reply is open."""
        self._feed.check_room()
        if self._open_feeds[tenant] >= MAX_FEEDS_PER_TENANT:
            raise TooManyFollowers(f"a tenant has at most {MAX_FEEDS_PER_TENANT} open feeds")
        self._open_feeds[tenant] += 1

        def release() -> None:
            self._open_feeds[tenant] -= 1
            if not self._open_feeds[tenant]:
                del self._open_feeds[tenant]

        reply = IteratorReply(events)
        reply.on_close = release
        reply.until_ended = self._until_revoked
        return reply

    async def _all_events(self, tenant: Tenant, after: FeedPlace) -> AsyncIterator[bytes]:
        yield KEEP_ALIVE
        batches = self._feed.follow(tenant, after, quiet_seconds=self._keep_alive_seconds)
        async with aclosing(batches):
            async for batch in batches:
                chunks = [as_sse(entry.event, format_cursor(entry.event)) for entry in batch]
                yield b"".join(chunks) or KEEP_ALIVE

    async def _session_events(
        self, tenant: Tenant, session_id: SessionId, after: int
    ) -> AsyncIterator[bytes]:
        yield KEEP_ALIVE
        batches = self._feed.follow_session(
            tenant, session_id, after, quiet_seconds=self._keep_alive_seconds
        )
        async with aclosing(batches):
            async for batch in batches:
                yield b"".join(as_sse(event, str(event.no)) for event in batch) or KEEP_ALIVE


def _cursor(request: Request) -> str:
    """Return the cursor to start after; a browser that reconnects sends it as Last-Event-ID."""
    return request.query().get("after") or request.header(b"last-event-id") or "0"


def parse_event_number(raw: str) -> int:
    """Parse the number of a session's event."""
    if not (raw.isascii() and raw.isdecimal() and len(raw) < 20 and int(raw) <= MAX_NUMBER):
        raise UnknownCursor(f"after: {raw[:64]!r} is not the number of an event")
    return int(raw)


def format_cursor(event: Event) -> str:
    """Return the cursor of the global feed behind an event."""
    return f"{event.session_id}:{event.no}"


def event_value(event: Event, cursor: str) -> dict[str, Any]:
    """Return an event as JSON."""
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
    """Return an event in the format of server-sent events."""
    body = _encode(event_value(event, cursor))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (cursor.encode(), event.kind.encode(), body)
