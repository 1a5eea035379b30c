"""The Conversations API: a conversation is a session with another id prefix."""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.request import conversation_id
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Annotate, Delete, Reserve
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import SessionItems, item_value
from holdfast.http.request.body import pop_metadata, read_fields
from holdfast.http.request.body_decoder import BodyDecoder
from holdfast.http.request.pagination import read_flag, read_page
from holdfast.http.request.session_headers import name_session, read_session_headers
from holdfast.http.request.submit_turn import ConversationNotFound
from holdfast.http.server.types import AnyReply, Request, json_reply

MAX_ITEMS = 20


class ConversationsApi:
    """Everything under /v1/conversations."""

    def __init__(self, gateway: Gateway, decoder: BodyDecoder) -> None:
        self._gateway = gateway
        self._decoder = decoder
        self._items = SessionItems(gateway)

    async def create(self, request: Request) -> AnyReply:
        """Create a conversation, with its first items if any are sent."""
        fields, items = await self._decoder.items(request, MAX_ITEMS)
        metadata = pop_metadata(fields) or b"{}"
        if not items and read_session_headers(request).idempotency_key is None:
            gateway = self._gateway
            session = await gateway.submit(
                Reserve(
                    tenant=request.tenant,
                    candidate_id=gateway.new_session_id(),
                    metadata=metadata,
                )
            )
            name_session(request, session)
            return json_reply(conversation_value(session))
        appended = await self._items.append(request, items, metadata=metadata)
        return json_reply(conversation_value(appended.session))

    async def get(self, request: Request) -> AnyReply:
        """Return a conversation."""
        return json_reply(conversation_value(await self._find(request)))

    async def update(self, request: Request) -> AnyReply:
        """Replace a conversation's metadata."""
        session = await self._find(request)
        metadata = pop_metadata(await read_fields(request))
        if metadata is None:
            raise InvalidInput("metadata is needed")
        changed = await self._gateway.submit(
            Annotate(tenant=request.tenant, session_id=session.id, metadata=metadata)
        )
        return json_reply(conversation_value(changed))

    async def delete(self, request: Request) -> AnyReply:
        """Erase a conversation permanently."""
        cascade = read_flag(request.query(), "cascade")
        session = await self._find(request)
        await self._gateway.submit(
            Delete(tenant=request.tenant, session_id=session.id, cascade=cascade)
        )
        name = conversation_id(session.id)
        return json_reply({"id": name, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, request: Request) -> AnyReply:
        """Append items without a run; wait for a running turn to end."""
        session = await self._find(request)
        _, items = await self._decoder.items(request, MAX_ITEMS)
        if not items:
            raise InvalidInput("items: at least one item is needed")
        appended = await self._items.append(request, items, session_id=session.id)
        return await self._items.reply(request, appended, len(items))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of the visible items."""
        page_request = read_page(request)
        return json_reply(await self._items.page(await self._find(request), page_request))

    async def get_item(self, request: Request) -> AnyReply:
        """Return one item."""
        session = await self._find(request)
        item = await self._items.visible(session, request.params["item_id"])
        return json_reply(item_value(item))

    async def delete_item(self, request: Request) -> AnyReply:
        """Hide or erase an item, and return the conversation."""
        erase = read_flag(request.query(), "erase")
        session = await self._find(request)
        item_id = request.params["item_id"]
        changed = await self._items.hide(request.tenant, session, item_id, erase=erase)
        return json_reply(conversation_value(changed))

    async def _find(self, request: Request) -> Session:
        session = await self._items.named_session(request)
        if session is None:
            raise ConversationNotFound(request.params["id"])
        return session


def conversation_value(session: Session) -> dict[str, Any]:
    """Return a session as a conversation object."""
    return {
        "id": conversation_id(session.id),
        "object": "conversation",
        "created_at": int(session.created_at),
        "metadata": msgspec.Raw(session.metadata),
    }
