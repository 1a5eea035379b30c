"""GET /v1/sessions/export: sessions with their turns and logs as one stream of JSON lines.

The stream reads a page at a time, each in a snapshot of its own, and the next one only once the
client has taken the one before: neither side holds more, and the store never waits for a client.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from holdfast._version import __version__
from holdfast.core.errors import SessionNotFound, StoreClosed
from holdfast.core.ids import SessionId, Tenant, session_of_name
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import log_entry
from holdfast.http.formats.sessions import session_value, turn_value
from holdfast.http.request.pagination import UnknownCursor, read_entries, read_flag
from holdfast.http.server.errors import TooManyExports
from holdfast.http.server.types import NDJSON, AnyReply, IteratorReply, Request
from holdfast.ports.store import (
    ExportedSession,
    ItemQuery,
    ListedItem,
    Reader,
    SessionView,
    TurnWithRuns,
)

VERSION = 1
MOST_SESSIONS = 64
"""The most sessions that one page may have."""
TURNS, ITEMS = 32, 500
"""How many turns, and at most how many items, of a large session are read at once."""
MAX_EXPORTS, MAX_EXPORTS_PER_TENANT = 8, 2
_encode = msgspec.json.Encoder().encode


def export_header(**fields: Any) -> bytes:
    """Return the first line of an export."""
    head = {"object": "session.export", "version": VERSION, "holdfast": __version__, **fields}
    return _line(head)


class ExportApi:
    """Streams of whole sessions."""

    def __init__(
        self, gateway: Gateway, until_revoked: Callable[[Request], Awaitable[None]]
    ) -> None:
        self._read = gateway.read
        self._until_revoked = until_revoked
        self._open: Counter[Tenant] = Counter()
        self._is_closing = False

    def close(self) -> None:
        """Break off every export, so that the server can stop; its client sees that it did."""
        self._is_closing = True

    async def export(self, request: Request) -> AnyReply:
        """Stream all sessions, or one, with their turns and logs."""
        query, tenant = request.query(), request.tenant
        generations, name = read_flag(query, "generations"), query.get("id")
        if name is not None:
            view = await self._read.session(tenant, session_id=session_of_name(name))
            if view is None or not view.session.is_visible:
                raise SessionNotFound(f"no session {name}")
            return self._reply(tenant, self._one(tenant, view))
        after = SessionId(session_of_name(query.get("after") or ""))
        if after:
            # An erased session keeps its place.
            session = await self._read.any_session(after)
            if session is None or session.tenant != tenant:
                raise UnknownCursor(f"after: there is no session {after!r}")
        self._check_room(tenant)
        total = await self._count(tenant, after, generations=generations)
        return self._reply(tenant, self._all(tenant, after, total, generations=generations))

    def _check_room(self, tenant: Tenant) -> None:
        if self._open[tenant] >= MAX_EXPORTS_PER_TENANT or self._open.total() >= MAX_EXPORTS:
            raise TooManyExports(
                f"a tenant has at most {MAX_EXPORTS_PER_TENANT} open exports, "
                f"and the process {MAX_EXPORTS}"
            )

    def _reply(self, tenant: Tenant, chunks: AsyncIterator[bytes]) -> AnyReply:
        self._check_room(tenant)
        self._open[tenant] += 1

        def release() -> None:
            self._open[tenant] -= 1

        reply = IteratorReply(chunks, headers=(NDJSON,))
        reply.on_close = release
        reply.until_ended = self._until_revoked
        return reply

    async def _count(self, tenant: Tenant, after: SessionId, *, generations: bool) -> int:
        total = 0
        last: SessionId | None = after
        while last is not None:
            count, last = await self._read.count_sessions(
                tenant, after=last, generations=generations
            )
            total += count
        return total

    async def _one(self, tenant: Tenant, view: SessionView) -> AsyncIterator[bytes]:
        yield export_header(total=1)
        async for chunk in self._large(tenant, view):
            yield chunk
        yield _cursor(view.session.id, 1, has_more=False)

    async def _all(
        self, tenant: Tenant, after: SessionId, total: int, *, generations: bool
    ) -> AsyncIterator[bytes]:
        yield export_header(generations=generations, total=total)
        count, limit, has_more = 0, MOST_SESSIONS, True
        while has_more:
            page = await self._read.export_page(
                tenant, after=after, generations=generations, limit=limit
            )
            chunk = b""
            for exported in page.sessions:
                if exported.is_large:
                    async for part in self._large(tenant, exported.view):
                        yield part
                else:
                    chunk += whole_lines(exported)
            if page.sessions:
                after = page.sessions[-1].view.session.id
            count += len(page.sessions)
            # Sessions beyond a page were read in vain: ask for about as many as fitted.
            limit = min(2 * len(page.sessions) + 2, MOST_SESSIONS)
            has_more = page.has_more
            yield chunk + _cursor(after, count, has_more=has_more)
            if self._is_closing and has_more:
                raise StoreClosed("the gateway stops")

    async def _large(self, tenant: Tenant, view: SessionView) -> AsyncIterator[bytes]:
        """Yield a session in parts; if it is erased meanwhile, say that its lines are void."""
        try:
            async for part in session_lines(self._read, tenant, view):
                if self._is_closing:
                    raise StoreClosed("the gateway stops")
                yield part
        except SessionNotFound:
            erased = {"object": "session.export.erased", "session_id": view.session.id}
            yield _line(erased)


def whole_lines(exported: ExportedSession) -> bytes:
    """Return a session, its turns and every item of its log as lines."""
    values = [session_value(exported.view)]
    values += [turn_value(turn.view, turn.runs) for turn in exported.turns]
    values += [log_entry(item) for item in exported.items]
    return _lines(values)


async def session_lines(read: Reader, tenant: Tenant, view: SessionView) -> AsyncIterator[bytes]:
    """Yield the same lines in bounded parts, all of one version of the session.

    Raise `SessionNotFound` at the end if the session was erased meanwhile.
    """
    yield _lines([session_value(view)])
    session, number = view.session, 0
    while number < session.turn_count:
        turns: list[TurnWithRuns] = await read.turns_as_of(
            session, is_running=view.status == "running", after=number, limit=TURNS
        )
        yield _lines([turn_value(turn.view, turn.runs) for turn in turns])
        number += TURNS
    seq = 0

    async def read_items(count: int, last: ListedItem | None) -> list[ListedItem]:
        after = seq if last is None else last.item.seq
        return await read.listing(session, ItemQuery(after=after, limit=count, view="log"))

    while entries := await read_entries(ITEMS, read_items, lambda entry: len(entry.item.body)):
        seq = entries[-1].item.seq
        yield _lines([log_entry(entry) for entry in entries])
    if await read.find_session(tenant, session_id=session.id) is None:
        raise SessionNotFound(f"no session {session.id}")


def _cursor(after: SessionId, sessions: int, *, has_more: bool) -> bytes:
    """Return the line that says that everything before it is complete."""
    name = "session.export.cursor"
    return _line({"object": name, "after": after, "sessions": sessions, "has_more": has_more})


def _lines(values: list[dict[str, Any]]) -> bytes:
    return b"".join(map(_line, values))


def _line(value: dict[str, Any]) -> bytes:
    line = _encode(value)
    if b"\n" in line or b"\r" in line:
        # Items are stored as they were sent. Inside JSON, a line end is a space between tokens.
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line + b"\n"
