"""Read and write a session's items: shared by the Conversations and Sessions APIs."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput, ItemNotFound, SessionChanged, SessionNotFound
from holdfast.core.ids import SessionId, Tenant, TurnId, session_of_name
from holdfast.core.model.gateway_items import CALL, COMPLETION, is_listed, shown_call
from holdfast.core.model.item_ids import shown
from holdfast.core.model.items import ERASED_ITEM, NewItem, StoredItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Append, Appended, Hide
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.item_references import ReferenceResolver
from holdfast.http.request.pagination import (
    PageRequest,
    UnknownCursor,
    page,
    read_entries,
    whole_page,
)
from holdfast.http.request.session_headers import name_session, read_session_headers
from holdfast.http.request.submit_turn import SessionTarget, body_hash
from holdfast.http.server.types import Reply, Request, json_reply
from holdfast.ports.store import ItemQuery, ListedItem, SessionView

CALL_PAGE = 64
"""How many items are read at once to find the call of a completion, which is near."""


class SessionItems:
    """Read and write items by their public ids."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._references = ReferenceResolver(gateway.read)

    async def session(self, tenant: Tenant, name: str) -> SessionView | None:
        """Return a session by its id, or as a conversation; `None` if it is internal or unknown."""
        if "\0" in name:
            return None
        view = await self._gateway.read.session(tenant, session_id=session_of_name(name))
        return view if view is not None and view.session.is_visible else None

    async def named(self, request: Request) -> SessionView | None:
        """Return the session that a path names; the answer names it too."""
        view = await self.session(request.tenant, request.params["id"])
        if view is not None:
            name_session(request, view.session)
        return view

    async def named_session(self, request: Request) -> Session | None:
        """Return the session that a path names, without its queue and its last turn."""
        name = request.params["id"]
        if "\0" in name:
            return None
        session = await self._gateway.read.find_session(
            request.tenant, session_id=session_of_name(name)
        )
        if session is None or not session.is_visible:
            return None
        name_session(request, session)
        return session

    async def page(
        self, session: Session, request: PageRequest, *, is_log: bool = False
    ) -> dict[str, Any]:
        """Return a page of a session's items."""
        query = ItemQuery(
            after=await self._sequence(session, request.after),
            order=request.order,
            view="log" if is_log else "visible",
        )

        async def read(count: int, last: ListedItem | None) -> list[ListedItem]:
            after = query.after if last is None else last.item.seq
            entries = await self._gateway.read.listing(
                session, replace(query, after=after, limit=count)
            )
            if not entries and session.head_seq and (after is None or last is not None):
                await self._check_kept(session)
            return entries

        def size_of(entry: ListedItem) -> int | None:
            return len(entry.item.body) if is_log or _is_listed(entry) else None

        entries = await read_entries(request.limit + 1, read, size_of)
        values = [log_entry(entry) if is_log else item_value(entry) for entry in entries]
        return page(values, [entry.name for entry in entries], request.limit)

    async def _check_kept(self, session: Session) -> None:
        """Raise if a session was erased since it was read: its items are gone, not hidden."""
        if await self._gateway.read.find_session(session.tenant, session_id=session.id) is None:
            raise SessionNotFound(f"no session {session.id}")

    async def _sequence(self, session: Session, after: str | None) -> int | None:
        if after is None:
            return None
        entry = await self.find(session, after)
        if entry is None:
            raise UnknownCursor(f"after: there is no item {after!r} in this list")
        return entry.item.seq

    async def find(self, session: Session, item_id: str) -> ListedItem | None:
        """Return an item by id, hidden or not."""
        if "\0" in item_id:
            return None
        return await self._gateway.read.item(session, item_id)

    async def visible(self, session: Session, item_id: str) -> ListedItem:
        """Return a visible item."""
        entry = await self.find(session, item_id)
        if entry is None or entry.hidden_by is not None:
            raise ItemNotFound(f"no item {item_id}")
        return entry

    async def append(
        self,
        request: Request,
        items: Sequence[NewItem],
        *,
        session_id: SessionId | None = None,
        metadata: bytes = b"{}",
    ) -> Appended:
        """Append items without a run, once per request; without `session_id`, to a new session."""
        headers, gateway = read_session_headers(request), self._gateway
        items = await self._references.resolve(
            request.tenant, items, SessionTarget(session_id=session_id), param="items"
        )
        if headers.is_bound or headers.is_internal:
            raise InvalidInput("the path names the session; send no session headers")
        if headers.expected_id is not None and headers.expected_id != session_id:
            raise SessionChanged(headers.expected_id, session_id)
        command = Append(
            tenant=request.tenant,
            turn_id=TurnId(gateway.ids.new("turn")),
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            session_id=session_id,
            items=tuple(items),
            idempotency_key=headers.idempotency_key,
            body_hash=await body_hash(request),
            retry_count=headers.retry_count,
            metadata=metadata,
            limits=await gateway.storage.limits(request.tenant, gateway.limits),
        )
        appended = await append_items(gateway, command, on_busy=headers.on_busy or "enqueue")
        gateway.storage.note(request.tenant, sum(len(item.body) for item in items))
        name_session(request, appended.session, appended.turn.id)
        return appended

    async def reply(self, request: Request, appended: Appended, count: int) -> Reply:
        """Return the appended items; the turn is marked as delivered once they were sent."""
        turn = appended.turn
        reply = json_reply(await self._appended_page(request, turn, count))
        reply.delivers = turn.id, turn.step
        return reply

    async def _appended_page(self, request: Request, turn: Turn, count: int) -> dict[str, Any]:
        last = turn.last_seq or 0
        session = await self._gateway.read.find_session(request.tenant, session_id=turn.session_id)
        if session is None:
            raise SessionNotFound(f"no session {turn.session_id}")
        query = ItemQuery(after=last - count, limit=count, view="log")
        entries = await self._gateway.read.listing(session, query) if count else []
        values = [item_value(entry) for entry in entries]
        return whole_page(values, [entry.name for entry in entries])

    async def hide(self, tenant: Tenant, session: Session, item_id: str, *, erase: bool) -> Session:
        """Hide an item; with `erase`, also remove its content permanently, hidden or not."""
        entry = await self.find(session, item_id) if erase else None
        if entry is None or entry.item.body == ERASED_ITEM:
            entry = await self.visible(session, item_id)
        item = entry.item
        seq = item.seq
        if erase and seq <= session.parent_seq:
            raise InvalidInput(
                f"item {item_id} is inherited; erase it in the session that it belongs to"
            )
        return await self._gateway.submit(
            Hide(
                tenant=tenant,
                session_id=session.id,
                from_seq=seq,
                to_seq=seq,
                erase=erase,
                also=await self._call_of(session, item) if item.kind == COMPLETION else (),
            )
        )

    async def _call_of(self, session: Session, completion: StoredItem) -> tuple[int, ...]:
        """Return the number of the call that clients see as one item with its completion."""
        shown_id = shown_call(completion.body)
        query = ItemQuery(after=completion.seq, limit=CALL_PAGE, order="desc", view="log")
        while items := await self._gateway.read.items(session, query):
            for item in items:
                if item.turn_number != completion.turn_number:
                    return ()
                is_call = item.kind == CALL and item.body != ERASED_ITEM
                if is_call and shown_call(item.body) == shown_id:
                    return (item.seq,)
            query = replace(query, after=items[-1].seq)
        return ()


def _is_listed(entry: ListedItem) -> bool:
    return is_listed(entry.item.kind, entry.item.body)


def item_value(listed: ListedItem) -> msgspec.Raw:
    """Return an item as JSON, as the visible view lists it."""
    return msgspec.Raw(shown(listed.item, listed.name))


def log_entry(listed: ListedItem) -> dict[str, Any]:
    """Return an item as the log view lists it: with its sequence and the record that hides it."""
    record, item = listed.hidden_by, listed.item
    hidden_by = None
    if record is not None:
        hidden_by = {
            "record": record.no,
            "kind": record.kind,
            "session_id": record.session_id,
            "turn_id": record.turn_id,
            "created_at": int(record.created_at),
        }
    return {
        "id": listed.name,
        "object": "session.item",
        "sequence": item.seq,
        "session_id": item.session_id,
        "turn_number": item.turn_number,
        "is_partial": bool(item.is_partial),
        "hidden_by": hidden_by,
        "item": item_value(listed),
    }
