"""Transcripts over HTTP: what the Conversations and the Sessions API do with a session's items."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, ItemNotFound, SessionNotFound
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.item_ids import shown
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Append, Appended, Hide
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.body import Fields, take_list
from holdfast.http.request.item_references import References
from holdfast.http.request.item_validation import read_sent_item
from holdfast.http.request.pagination import PageAsked, UnknownCursor, page
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.submit_turn import Target, body_hash
from holdfast.http.server.types import Reply, Request, json_reply
from holdfast.ports.store import ItemQuery, ListedItem, SessionView


class Transcripts:
    """Reads and writes items of sessions, by the names that lists show."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._references = References(gateway.read)

    async def session(self, tenant: Tenant, session_id: SessionId) -> SessionView | None:
        """Return a session that may be seen from outside."""
        if "\0" in session_id:
            return None
        view = await self._gateway.read.session(tenant, session_id=session_id)
        return view if view is not None and view.session.is_visible else None

    async def listed(
        self, session: Session, asked: PageAsked, *, is_log: bool = False
    ) -> dict[str, Any]:
        """Return a page of a session's items."""
        query = ItemQuery(
            after=await self._place(session, asked.after),
            limit=asked.limit + 1,
            order=asked.order,
            view="log" if is_log else "visible",
        )
        found = await self._gateway.read.listing(session, query)
        entries = [log_entry(one) if is_log else item_value(one) for one in found]
        return page(entries, [one.name for one in found], asked.limit)

    async def _place(self, session: Session, after: str | None) -> int | None:
        if after is None:
            return None
        found = await self.find(session, after)
        if found is None:
            raise UnknownCursor(f"after: there is no item {after!r} in this list")
        return found.item.seq

    async def find(self, session: Session, name: str) -> ListedItem | None:
        """Return an item by name, hidden or not."""
        if "\0" in name:
            return None
        return await self._gateway.read.item(session, name)

    async def visible(self, session: Session, name: str) -> ListedItem:
        """Return an item that the model may be shown."""
        found = await self.find(session, name)
        if found is None or found.hidden_by is not None:
            raise ItemNotFound(f"no item {name}")
        return found

    async def append(
        self,
        request: Request,
        items: Sequence[NewItem],
        *,
        session_id: SessionId | None = None,
        metadata: bytes = b"{}",
    ) -> Appended:
        """Add items with no run, once for each request; without a session, to a new one."""
        headers, gateway = read_session_headers(request), self._gateway
        items = await self._references.resolve(
            request.tenant, items, Target(session_id=session_id), param="items"
        )
        if headers.is_bound or headers.is_internal:
            raise InvalidInput("items go to the session in the path; send no session headers")
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
        done = await append_items(gateway, command, on_busy=headers.on_busy or "enqueue")
        gateway.storage.note(request.tenant, sum(len(item.body) for item in items))
        return done

    async def reply(self, request: Request, done: Appended, count: int) -> Reply:
        """Answer with the items that were added, and note when the answer has left."""
        turn = done.turn
        reply = json_reply(await self._appended(request, done, count))
        reply.delivers = turn.id, turn.step
        return reply

    async def _appended(self, request: Request, done: Appended, count: int) -> dict[str, Any]:
        last = done.turn.last_seq or 0
        view = await self._gateway.read.session(request.tenant, session_id=done.turn.session_id)
        if view is None:
            raise SessionNotFound(f"no session {done.turn.session_id}")
        query = ItemQuery(after=last - count, limit=count, view="log")
        found = await self._gateway.read.listing(view.session, query) if count else []
        return page([item_value(one) for one in found], [one.name for one in found], max(count, 1))

    async def hide(self, tenant: Tenant, session: Session, name: str, *, erase: bool) -> Session:
        """Take an item out of the view; with `erase`, blank its content for good."""
        seq = (await self.visible(session, name)).item.seq
        if erase and seq <= session.parent_seq:
            raise InvalidInput(f"item {name} is inherited; erase it in the session it was said in")
        return await self._gateway.submit(
            Hide(tenant=tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=erase)
        )


def read_items(fields: Fields, *, most: int) -> list[NewItem] | None:
    """Take `items` out of a body: each kept as it came."""
    listed = take_list(fields, "items")
    if listed is None:
        return None
    if len(listed) > most:
        raise InvalidInput(f"items: at most {most} may be sent at once, these are {len(listed)}")
    return [read_sent_item(bytes(one), f"items[{index}]") for index, one in enumerate(listed)]


def item_value(listed: ListedItem) -> msgspec.Raw:
    """Return an item as a list of the visible view shows it."""
    return msgspec.Raw(shown(listed.item, listed.name))


def log_entry(listed: ListedItem) -> dict[str, Any]:
    """Return an item as the log's view shows it: where it stands, and what hides it."""
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


def read_flag(asked: dict[str, str], name: str) -> bool:
    """Return a yes or no of the query."""
    raw = asked.get(name, "false").lower()
    if raw not in ("true", "false", "1", "0", ""):
        raise InvalidInput(f"{name} is true or false, not {raw!r}")
    return raw in ("true", "1", "")
