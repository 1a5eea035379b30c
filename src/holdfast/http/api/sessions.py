"""The Sessions API: what there is, what it said, and its life under its key."""

from typing import Any

from holdfast.core.errors import InvalidInput, ItemNotFound, SessionNotFound
from holdfast.core.ids import SessionId, read_key
from holdfast.core.model.session import Session, SessionStatus
from holdfast.core.transaction.commands import Annotate, Delete, Fork, Reset, Restore
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import Transcripts, read_flag, read_items
from holdfast.http.api.turns import find_turn
from holdfast.http.formats.sessions import session_value, turn_value
from holdfast.http.request.body import read_fields, read_optional_fields, take
from holdfast.http.request.metadata import take_metadata
from holdfast.http.request.pagination import UnknownCursor, page, read_choice, read_page
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.submit_turn import body_hash
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.store import SessionQuery, SessionView

MAX_ITEMS = 1000
MAX_REASON = 256
STATUSES: dict[str, SessionStatus] = {"idle": "idle", "running": "running", "retired": "retired"}


class SessionsApi:
    """Everything under /v1/sessions but its events."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transcripts = Transcripts(gateway)

    # ── what there is ───────────────────────────────────────────────────────────────────────

    async def list(self, request: Request) -> AnyReply:
        """Return a page of sessions; with a key, the live one of the key and its generations."""
        asked, wanted = request.query(), read_page(request)
        key = asked.get("key")
        status = read_choice(asked, "status", tuple(STATUSES))
        if wanted.after is not None and await self._seen(request, wanted.after) is None:
            raise UnknownCursor(f"after: there is no session {wanted.after!r}")
        query = SessionQuery(
            key=read_key(key) if key is not None else None,
            status=STATUSES[status] if status is not None else None,
            generations=read_flag(asked, "generations"),
            after=SessionId(wanted.after) if wanted.after else None,
            limit=wanted.limit + 1,
            order=wanted.order,
        )
        found = await self._gateway.read.sessions(request.tenant, query)
        names = [view.session.id for view in found]
        return json_reply(page([session_value(view) for view in found], names, wanted.limit))

    async def get(self, request: Request) -> AnyReply:
        """Return one session."""
        return json_reply(session_value(await self._find(request)))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of what the model may be shown, or of the whole log."""
        asked = read_page(request, order="asc")
        is_log = read_choice(request.query(), "view", ("visible", "log")) == "log"
        session = (await self._find(request)).session
        return json_reply(await self._transcripts.listed(session, asked, is_log=is_log))

    async def turns(self, request: Request) -> AnyReply:
        """Return a page of a session's turns."""
        asked = read_page(request, order="asc")
        session, read = (await self._find(request)).session, self._gateway.read
        after = 0
        if asked.after is not None:
            cursor = await find_turn(self._gateway, request.tenant, asked.after)
            if cursor is None or cursor.turn.session_id != session.id:
                raise UnknownCursor(f"after: there is no turn {asked.after!r} in this list")
            after = cursor.turn.number
        found = await read.turns(session.id, after=after, limit=asked.limit + 1, order=asked.order)
        values = [turn_value(view, await read.runs(view.turn.id)) for view in found]
        return json_reply(page(values, [view.turn.id for view in found], asked.limit))

    # ── what may be changed ─────────────────────────────────────────────────────────────────

    async def update(self, request: Request) -> AnyReply:
        """Replace a session's metadata."""
        session = (await self._find(request)).session
        metadata = take_metadata(await read_fields(request))
        if metadata is None:
            raise InvalidInput("metadata: say what it should be")
        command = Annotate(tenant=request.tenant, session_id=session.id, metadata=metadata)
        return await self._answer(request, await self._gateway.submit(command))

    async def add_items(self, request: Request) -> AnyReply:
        """Add items without a run."""
        session = (await self._find(request)).session
        items = read_items(await read_fields(request), most=MAX_ITEMS)
        if not items:
            raise InvalidInput("items: at least one item is needed")
        done = await self._transcripts.append(request, items, session_id=session.id)
        return await self._transcripts.reply(request, done, len(items))

    async def reset(self, request: Request) -> AnyReply:
        """Retire this generation and begin the next one under its key."""
        session = (await self._find(request)).session
        fields = await read_optional_fields(request)
        expected = take(fields, "expected_session_id", str)
        reason = take(fields, "reason", str) or "session_reset"
        if len(reason) > MAX_REASON or "\0" in reason:
            raise InvalidInput(f"reason: a text of at most {MAX_REASON} characters")
        command = Reset(
            tenant=request.tenant,
            session_id=session.id,
            new_id=self._gateway.new_session_id(),
            expected_id=SessionId(expected) if expected is not None else None,
            reason=reason,
            idempotency_key=read_session_headers(request).idempotency_key,
            body_hash=await body_hash(request),
        )
        return await self._answer(request, await self._gateway.submit(command))

    async def restore(self, request: Request) -> AnyReply:
        """Make an old generation live again."""
        session = (await self._find(request)).session
        await read_optional_fields(request)
        command = Restore(tenant=request.tenant, session_id=session.id)
        return await self._answer(request, await self._gateway.submit(command))

    async def fork(self, request: Request) -> AnyReply:
        """Begin a keyless session that shares this one's history up to an item."""
        session = (await self._find(request)).session
        fields = await read_optional_fields(request)
        command = Fork(
            tenant=request.tenant,
            session_id=session.id,
            new_id=self._gateway.new_session_id(),
            after_seq=await self._place(session, take(fields, "after_item", str | int)),
            idempotency_key=read_session_headers(request).idempotency_key,
            body_hash=await body_hash(request),
        )
        return await self._answer(request, await self._gateway.submit(command))

    async def _place(self, session: Session, after: str | int | None) -> int | None:
        if after is None or isinstance(after, int):
            return after
        found = await self._transcripts.find(session, after)
        if found is None:
            raise ItemNotFound(f"no item {after}")
        return found.item.seq

    async def delete(self, request: Request) -> AnyReply:
        """Erase a session for good."""
        cascade = read_flag(request.query(), "cascade")
        session = (await self._find(request)).session
        await self._gateway.submit(
            Delete(tenant=request.tenant, session_id=session.id, cascade=cascade)
        )
        gone: dict[str, Any] = {"id": session.id, "object": "session.deleted", "deleted": True}
        return json_reply(gone)

    # ── finding it ──────────────────────────────────────────────────────────────────────────

    async def _answer(self, request: Request, session: Session) -> AnyReply:
        """Answer with a session as it is now."""
        view = await self._seen(request, session.id)
        if view is None:
            raise SessionNotFound(f"no session {session.id}")
        return json_reply(session_value(view))

    async def _seen(self, request: Request, name: str) -> SessionView | None:
        return await self._transcripts.session(request.tenant, SessionId(name))

    async def _find(self, request: Request) -> SessionView:
        name = request.params["id"]
        view = await self._seen(request, name)
        if view is None:
            raise SessionNotFound(f"no session {name}")
        return view
