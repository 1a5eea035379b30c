"""Channels over HTTP: their state, messages to send, pairings, the outbox, and webhooks."""

import base64
import re
from typing import Any

import msgspec

from holdfast.core.decisions.api_keys import NotAllowed
from holdfast.core.decisions.channels.outbox import MessageNotFound
from holdfast.core.errors import InvalidInput
from holdfast.core.model.channels import PairingRow
from holdfast.core.model.delivery import OutboxRow, OutboxState
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.body import pop_field, read_fields, read_no_fields, reject_unknown
from holdfast.http.request.pagination import (
    UnknownCursor,
    page,
    read_choice,
    read_page,
    whole_page,
)
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.server.types import JSON, AnyReply, Reply, Request, json_reply
from holdfast.ports.channel import ChannelDirectory, OperatorMessage, OutgoingFile
from holdfast.ports.outbox import OutboxQuery

STATES: dict[str, OutboxState] = {
    "open": "open", "pending": "pending", "sending": "sending", "sent": "sent", "dead": "dead",
    "dropped": "dropped",
}  # fmt: skip
MAX_WEBHOOK_BYTES = 64 * 1024
"""Anybody can send a webhook: its signature is over the whole body."""
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)


class _SentFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    data: str
    media_type: str = ""


class ChannelsApi:
    """Everything under /v1/channels and /v1/outbox."""

    def __init__(self, gateway: Gateway, channels: ChannelDirectory) -> None:
        self._gateway = gateway
        self._channels = channels

    async def list_page(self, request: Request) -> AnyReply:
        """Return every channel with what it does."""
        require_admin(request)
        listed = await self._channels.listing()
        return json_reply(whole_page(listed, [str(channel["name"]) for channel in listed]))

    async def send(self, request: Request) -> AnyReply:
        """Queue a message to a chat; with an idempotency key, once."""
        require_admin(request)
        fields = await read_fields(request)
        message = OperatorMessage(
            chat=pop_field(fields, "to", str, ""),
            text=pop_field(fields, "text", str, ""),
            thread=pop_field(fields, "thread", str, ""),
            files=tuple(map(_outgoing_file, pop_field(fields, "files", list[_SentFile], []))),
            key=read_session_headers(request).idempotency_key,
        )
        reject_unknown(fields)
        ids = await self._channels.send(request.params["name"], message)
        return json_reply(
            {"object": "list", "data": [{"id": message_id} for message_id in ids]}, status=202
        )

    async def webhook(self, request: Request) -> AnyReply:
        """Handle a platform's own request; it is answered only after its turn is committed."""
        request.max_body_bytes = min(request.max_body_bytes, MAX_WEBHOOK_BYTES)
        body = await request.body()
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in request.headers
        }
        reply = await self._channels.webhook(request.params["name"], headers, body)
        return Reply(reply, headers=[JSON])

    async def check(self, request: Request) -> AnyReply:
        """Ask the platform whether the channel works."""
        require_admin(request)
        await read_no_fields(request)
        return json_reply(await self._channels.check(request.params["name"]))

    async def pairings(self, request: Request) -> AnyReply:
        """Return who asked to write to a channel."""
        require_admin(request)
        rows = await self._channels.pairings(request.params["name"])
        values = [pairing_value(row) for row in rows]
        return json_reply(whole_page(values, [row.sender for row in rows]))

    async def approve(self, request: Request) -> AnyReply:
        """Approve a pairing by its code."""
        require_admin(request)
        await read_no_fields(request)
        row = await self._channels.approve(request.params["name"], request.params["code"])
        return json_reply(pairing_value(row))

    async def revoke(self, request: Request) -> AnyReply:
        """Revoke a sender's pairing."""
        require_admin(request)
        await read_no_fields(request)
        sender = request.params["sender"]
        is_revoked = await self._channels.revoke(request.params["name"], sender)
        return json_reply({"object": "pairing.deleted", "sender": sender, "deleted": is_revoked})

    async def outbox(self, request: Request) -> AnyReply:
        """Return a page of the outbox, the newest first."""
        require_admin(request)
        query, page_request = request.query(), read_page(request)
        state = read_choice(query, "state", tuple(STATES))
        reader = self._gateway.store.channels
        if page_request.after is not None and await reader.message(page_request.after) is None:
            raise UnknownCursor(f"after: there is no message {page_request.after!r}")
        rows = await reader.messages(
            None,
            OutboxQuery(
                channel=query.get("channel"),
                state=STATES[state] if state is not None else None,
                after=page_request.after,
                limit=page_request.limit + 1,
            ),
        )
        values = [message_value(row) for row in rows]
        return json_reply(page(values, [row.id for row in rows], page_request.limit))

    async def retry(self, request: Request) -> AnyReply:
        """Send a dead message again."""
        require_admin(request)
        await read_no_fields(request)
        return json_reply(message_value(await self._channels.revise(_message_id(request), "retry")))

    async def drop(self, request: Request) -> AnyReply:
        """Drop a message that was not sent."""
        require_admin(request)
        await read_no_fields(request)
        return json_reply(message_value(await self._channels.revise(_message_id(request), "drop")))


def _message_id(request: Request) -> str:
    name = request.params["id"]
    if "\0" in name:  # PostgreSQL rejects NUL even in a query.
        raise MessageNotFound("no message has such an id")
    return name


def _outgoing_file(file: _SentFile) -> OutgoingFile:
    try:
        content = base64.b64decode(file.data, validate=True)
    except ValueError as exc:
        raise InvalidInput(f"the file {file.name} is not Base64", param="files") from exc
    from mimetypes import guess_type

    media_type = file.media_type or guess_type(file.name)[0] or "application/octet-stream"
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise InvalidInput(f"{media_type!r} is not a media type", param="files")
    return OutgoingFile(name=file.name, media_type=media_type, content=content)


def require_admin(request: Request) -> None:
    """Reject a caller without an admin key, once keys exist."""
    if not request.is_admin:
        raise NotAllowed("this path needs an admin key")


def pairing_value(row: PairingRow) -> dict[str, Any]:
    """Return a pairing as the API shows it."""
    return {"object": "pairing", **msgspec.to_builtins(row)}


def message_value(row: OutboxRow) -> dict[str, Any]:
    """Return a message of the outbox without its text: that is in the transcript."""
    value: dict[str, Any] = msgspec.to_builtins(row)
    del value["text"]
    return {"object": "outbox.message", **value}
