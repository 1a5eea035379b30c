"""The Sessions API: list and read sessions, reset, restore, fork and delete them."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput, ItemNotFound, SessionNotFound
from holdfast.core.ids import Tenant, read_key, session_of_name
from holdfast.core.model.session import Session, SessionStatus
from holdfast.core.transaction.commands import Annotate, Delete, Fork, Reset, Restore
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.approvals import waits_for_approval
from holdfast.http.api.session_items import SessionItems
from holdfast.http.api.session_previews import preview
from holdfast.http.api.turns import find_turn
from holdfast.http.formats.sessions import session_value, turn_value
from holdfast.http.request.body import (
    pop_field,
    pop_metadata,
    read_fields,
    read_no_fields,
    read_optional_fields,
    reject_unknown,
)
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.pagination import (
    MAX_PAGE,
    UnknownCursor,
    page,
    read_choice,
    read_entries,
    read_flag,
    read_page,
    whole_page,
)
from holdfast.http.request.session_headers import (
    check_expectable,
    check_session,
    name_session,
    read_session_headers,
)
from holdfast.http.request.submit_turn import body_hash
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.store import SessionQuery, SessionView, TurnView

_Turn = tuple[TurnView, msgspec.Raw]
_encode = msgspec.json.Encoder().encode
MAX_ITEMS = 1000
MAX_REASON = 256
MAX_SEARCH = 512
SCANNED_PAGE, SCANNED_PAGES = 100, 20
"""How many sessions one request reads to find those that want somebody's attention."""
WANTS: dict[str, Callable[[SessionView], bool]] = {
    "approval": lambda view: waits_for_approval(view.session),
    "failed": lambda view: view.last_turn is not None and view.last_turn.outcome == "failed",
}
"""What a session may want from a person, and which ones do."""
STATUSES: dict[str, SessionStatus] = {"idle": "idle", "running": "running", "retired": "retired"}


class SessionsApi:
    """Everything under /v1/sessions except events and compactions."""

    def __init__(self, gateway: Gateway, decoder: BodyDecoder) -> None:
        self._gateway = gateway
        self._decoder = decoder
        self._items = SessionItems(gateway)

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    async def list_page(self, request: Request) -> AnyReply:
        """Return a page of sessions; with `key`, its live session or all its generations."""
        query, page_request = request.query(), read_page(request)
        shows_preview = read_flag(query, "preview")
        if "search" in query:
            views = await self._search(request, page_request.limit + 1)
            return await self._list(views, page_request.limit, shows_preview=shows_preview)
        key, wants = query.get("key"), read_choice(query, "wants", tuple(WANTS))
        status = read_choice(query, "status", tuple(STATUSES))
        sort = read_choice(query, "sort", ("created", "activity"))
        if sort == "activity" and page_request.order == "asc":
            raise InvalidInput("sort=activity lists the latest first: order=asc is not supported")
        after = page_request.after
        if after is not None and await self._visible(request, after) is None:
            raise UnknownCursor(f"after: there is no session {after!r}")
        session_query = SessionQuery(
            key=read_key(key) if key is not None else None,
            status=STATUSES[status] if status is not None else None,
            generations=read_flag(query, "generations"),
            after=session_of_name(after) if after else None,
            limit=page_request.limit + 1,
            order=page_request.order,
            sort="activity" if sort == "activity" else "created",
        )
        if wants is None:
            views = await self._gateway.read.sessions(request.tenant, session_query)
            return await self._list(views, page_request.limit, shows_preview=shows_preview)
        if wants == "approval":
            session_query = replace(session_query, status="running")
        views, last_read = await self._matching(request.tenant, session_query, WANTS[wants])
        return await self._list(
            views, page_request.limit, last_read=last_read, shows_preview=shows_preview
        )

    async def _search(self, request: Request, limit: int) -> list[SessionView]:
        """Return the session of an id, and sessions whose keys match."""
        query = request.query()
        text, generations = query["search"].strip(), read_flag(query, "generations")
        for name in ("key", "status", "sort", "wants", "after"):
            if name in query:
                raise InvalidInput(f"search takes no {name}", param=name)
        if not text or len(text) > MAX_SEARCH or "\0" in text:
            problem = f"search: 1 to {MAX_SEARCH} characters, without NUL"
            raise InvalidInput(problem, param="search")
        found = await self._gateway.store.search.sessions(
            request.tenant, text, limit, generations=generations
        )
        views = [await self._visible(request, name) for name in (text, *found)]
        return [view for view in views if view is not None][:limit]

    async def _matching(
        self, tenant: Tenant, query: SessionQuery, is_wanted: Callable[[SessionView], bool]
    ) -> tuple[list[SessionView], str | None]:
        """Return the sessions that are wanted among the next ones.

        If more have to be read than one request reads, also return the last one that was read.
        """
        found: list[SessionView] = []
        wanted, query = query.limit, replace(query, limit=SCANNED_PAGE)
        for _ in range(SCANNED_PAGES):
            views = await self._gateway.read.sessions(tenant, query)
            found += [view for view in views if is_wanted(view)]
            if len(found) >= wanted or len(views) < query.limit:
                return found[:wanted], None
            query = replace(query, after=views[-1].session.id)
        return found, query.after

    async def _list(
        self,
        views: Sequence[SessionView],
        limit: int,
        *,
        shows_preview: bool,
        last_read: str | None = None,
    ) -> AnyReply:
        values = [session_value(view) for view in views]
        if shows_preview:
            for view, value in zip(views[:limit], values, strict=False):
                value["preview"] = await preview(self._gateway.read, view.session)
        reply = page(values, [view.session.id for view in views], limit)
        if last_read is not None and not reply["has_more"]:
            reply |= {"has_more": True, "last_id": last_read}
        return json_reply(reply)

    async def get(self, request: Request) -> AnyReply:
        """Return one session."""
        return json_reply(session_value(await self._find(request)))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of the visible items, or of the whole log."""
        page_request = read_page(request, order="asc")
        is_log = read_choice(request.query(), "view", ("visible", "log")) == "log"
        session = (await self._find(request)).session
        return json_reply(await self._items.page(session, page_request, is_log=is_log))

    async def turns(self, request: Request) -> AnyReply:
        """Return a page of a session's turns."""
        page_request = read_page(request, order="asc")
        session, read = (await self._find(request)).session, self._gateway.read
        after = 0
        if page_request.after is not None:
            cursor = await find_turn(self._gateway, request.tenant, page_request.after)
            if cursor is None or cursor.turn.session_id != session.id:
                raise UnknownCursor(f"after: there is no turn {page_request.after!r} in this list")
            after = cursor.turn.number

        async def read_turns(count: int, last: _Turn | None) -> list[_Turn]:
            number = after if last is None else last[0].turn.number
            views = await read.turns(
                session.id, after=number, limit=count, order=page_request.order
            )
            return [
                (view, msgspec.Raw(_encode(turn_value(view, await read.runs(view.turn.id)))))
                for view in views
            ]

        found = await read_entries(
            page_request.limit + 1, read_turns, lambda turn: memoryview(turn[1]).nbytes
        )
        ids = [view.turn.id for view, _ in found]
        return json_reply(page([value for _, value in found], ids, page_request.limit))

    async def forks(self, request: Request) -> AnyReply:
        """Return the sessions that were forked from a session, the first hundred."""
        session = (await self._find(request)).session
        views = await self._gateway.read.forks(request.tenant, session.id, MAX_PAGE + 1)
        shown = views[:MAX_PAGE]
        values, ids = [session_value(view) for view in shown], [view.session.id for view in shown]
        return json_reply(whole_page(values, ids, has_more=len(views) > MAX_PAGE))

    # ── changing ────────────────────────────────────────────────────────────────────────────

    async def update(self, request: Request) -> AnyReply:
        """Replace a session's metadata."""
        fields = await read_fields(request)
        metadata = pop_metadata(fields)
        reject_unknown(fields)
        session = await self._find_to_change(request)
        if metadata is None:
            raise InvalidInput("metadata is needed")
        command = Annotate(tenant=request.tenant, session_id=session.id, metadata=metadata)
        return await self._reply(request, await self._gateway.submit(command))

    async def add_items(self, request: Request) -> AnyReply:
        """Append items without a run."""
        fields, items = await self._decoder.items(request, MAX_ITEMS)
        reject_unknown(fields)
        session = (await self._find(request)).session
        if not items:
            raise InvalidInput("items: at least one item is needed")
        appended = await self._items.append(request, items, session_id=session.id)
        return await self._items.reply(request, appended, len(items))

    async def reset(self, request: Request) -> AnyReply:
        """Retire this generation and start the next one of its key."""
        fields = await read_optional_fields(request)
        expected = pop_field(fields, "expected_session_id", str)
        reason = pop_field(fields, "reason", str) or "session_reset"
        reject_unknown(fields)
        session = await self._find_to_change(request)
        if len(reason) > MAX_REASON or "\0" in reason:
            raise InvalidInput(f"reason: at most {MAX_REASON} characters, without NUL")
        command = Reset(
            tenant=request.tenant,
            session_id=session.id,
            new_id=self._gateway.new_session_id(),
            expected_id=session_of_name(expected) if expected is not None else None,
            reason=reason,
            idempotency_key=read_session_headers(request).idempotency_key,
            body_hash=await body_hash(request),
        )
        return await self._reply(request, await self._gateway.submit(command))

    async def restore(self, request: Request) -> AnyReply:
        """Make an old generation live again."""
        await read_no_fields(request)
        session = await self._find_to_change(request, is_live=False)
        command = Restore(tenant=request.tenant, session_id=session.id)
        return await self._reply(request, await self._gateway.submit(command))

    async def fork(self, request: Request) -> AnyReply:
        """Create a keyless session that shares this one's history up to an item."""
        fields = await read_optional_fields(request)
        after = pop_field(fields, "after_item", str | int)
        reject_unknown(fields)
        session = await self._find_to_change(request)
        command = Fork(
            tenant=request.tenant,
            session_id=session.id,
            new_id=self._gateway.new_session_id(),
            after_seq=await self._sequence(session, after),
            idempotency_key=read_session_headers(request).idempotency_key,
            body_hash=await body_hash(request),
        )
        return await self._reply(request, await self._gateway.submit(command))

    async def _sequence(self, session: Session, after: str | int | None) -> int | None:
        if after is None or isinstance(after, int):
            return after
        entry = await self._items.find(session, after)
        if entry is None:
            raise ItemNotFound(f"no item {after}")
        return entry.item.seq

    async def delete(self, request: Request) -> AnyReply:
        """Erase a session permanently."""
        cascade = read_flag(request.query(), "cascade")
        await read_no_fields(request)
        session = await self._find_to_change(request)
        await self._gateway.submit(
            Delete(tenant=request.tenant, session_id=session.id, cascade=cascade)
        )
        body: dict[str, Any] = {"id": session.id, "object": "session.deleted", "deleted": True}
        return json_reply(body)

    # ── finding ─────────────────────────────────────────────────────────────────────────────

    async def _reply(self, request: Request, session: Session) -> AnyReply:
        """Return the current state of a session."""
        view = await self._visible(request, session.id)
        if view is None:
            raise SessionNotFound(f"no session {session.id}")
        name_session(request, view.session)
        return json_reply(session_value(view))

    async def _visible(self, request: Request, session_id: str) -> SessionView | None:
        return await self._items.session(request.tenant, session_id)

    async def _find_to_change(self, request: Request, *, is_live: bool = True) -> Session:
        """Return a session that a request changes; one to restore is not expected to be live."""
        headers = read_session_headers(request)
        session = (await self._find(request)).session
        if not is_live:
            check_expectable(headers)
        check_session(headers, session)
        return session

    async def _find(self, request: Request) -> SessionView:
        view = await self._items.named(request)
        if view is None:
            raise SessionNotFound(f"no session {request.params['id']}")
        return view
