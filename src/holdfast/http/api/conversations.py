"""The Conversations API: a conversation is a session under its other name, and nothing besides."""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.request import conversation_id
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Annotate, Delete, Reserve
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.api.session_items import Transcripts, item_value, read_flag, read_items
from holdfast.http.request.body import read_fields
from holdfast.http.request.metadata import take_metadata
from holdfast.http.request.pagination import read_page
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.submit_turn import ConversationNotFound, conversation_session
from holdfast.http.server.types import AnyReply, Request, json_reply

MAX_ITEMS = 20


class ConversationsApi:
    """Everything under /v1/conversations."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transcripts = Transcripts(gateway)

    async def create(self, request: Request) -> AnyReply:
        """Begin a conversation, with its first items if there are any."""
        fields = await read_fields(request)
        items = read_items(fields, most=MAX_ITEMS) or []
        metadata = take_metadata(fields) or b"{}"
        if not items and read_session_headers(request).idempotency_key is None:
            gateway = self._gateway
            session = await gateway.submit(
                Reserve(
                    tenant=request.tenant,
                    candidate_id=gateway.new_session_id(),
                    metadata=metadata,
                )
            )
            return json_reply(conversation_value(session))
        done = await self._transcripts.append(request, items, metadata=metadata)
        return json_reply(conversation_value(done.session))

    async def get(self, request: Request) -> AnyReply:
        """Return a conversation."""
        return json_reply(conversation_value(await self._find(request)))

    async def update(self, request: Request) -> AnyReply:
        """Replace a conversation's metadata."""
        session = await self._find(request)
        metadata = take_metadata(await read_fields(request))
        if metadata is None:
            raise InvalidInput("metadata: say what it should be")
        changed = await self._gateway.submit(
            Annotate(tenant=request.tenant, session_id=session.id, metadata=metadata)
        )
        return json_reply(conversation_value(changed))

    async def delete(self, request: Request) -> AnyReply:
        """Erase a conversation for good."""
        cascade = read_flag(request.query(), "cascade")
        session = await self._find(request)
        await self._gateway.submit(
            Delete(tenant=request.tenant, session_id=session.id, cascade=cascade)
        )
        name = conversation_id(session.id)
        return json_reply({"id": name, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, request: Request) -> AnyReply:
        """Add items without a run; they wait their turn behind a running one."""
        session = await self._find(request)
        items = read_items(await read_fields(request), most=MAX_ITEMS)
        if not items:
            raise InvalidInput("items: at least one item is needed")
        done = await self._transcripts.append(request, items, session_id=session.id)
        return await self._transcripts.reply(request, done, len(items))

    async def items(self, request: Request) -> AnyReply:
        """Return a page of what the model will be shown next."""
        asked = read_page(request)
        return json_reply(await self._transcripts.listed(await self._find(request), asked))

    async def get_item(self, request: Request) -> AnyReply:
        """Return one item."""
        session = await self._find(request)
        found = await self._transcripts.visible(session, request.params["item_id"])
        return json_reply(item_value(found))

    async def delete_item(self, request: Request) -> AnyReply:
        """Take an item out of the conversation; answers the conversation."""
        erase = read_flag(request.query(), "erase")
        session = await self._find(request)
        name = request.params["item_id"]
        changed = await self._transcripts.hide(request.tenant, session, name, erase=erase)
        return json_reply(conversation_value(changed))

    async def _find(self, request: Request) -> Session:
        name = request.params["id"]
        view = None
        if name.startswith("conv_"):
            view = await self._transcripts.session(request.tenant, conversation_session(name))
        if view is None:
            raise ConversationNotFound(name)
        return view.session


def conversation_value(session: Session) -> dict[str, Any]:
    """Return a session as a conversation."""
    return {
        "id": conversation_id(session.id),
        "object": "conversation",
        "created_at": int(session.created_at),
        "metadata": msgspec.Raw(session.metadata),
    }
