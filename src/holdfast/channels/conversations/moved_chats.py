"""Groups that continue under another id: Telegram gives a supergroup a new one.

The session keeps the key made from the group's first id. Telegram announces the change in the old
group and in the new one. Webhooks may deliver a message of the new group before both notices; it
opens a separate session, which is copied into the first one once a notice has arrived.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby

from msgspec.structs import replace

from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import SessionBusy
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.delivery import gateway_key
from holdfast.core.model.items import StoredItem
from holdfast.core.transaction.commands import Append, RememberChat
from holdfast.engine.logging import log
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.channel import InboundMessage


class MovedChats:
    """The chats of one channel whose ids changed."""

    def __init__(self, gateway: Gateway, settings: ChannelSettings) -> None:
        self._gateway = gateway
        self._channel = settings.name
        self._tenant = Tenant(settings.tenant)
        self._predecessors: dict[str, str] = {}
        """The first id of each chat, by its current one."""
        self._successors: dict[str, str] = {}
        self._copied: dict[Key, int] = {}
        """How far the log of each session that a moved chat opened was copied."""

    def note(self, old: str, new: str) -> None:
        """Note in this process that a chat continues under another id."""
        self._predecessors[new], self._successors[old] = old, new

    async def remember(self, old: str, new: str) -> None:
        """Record in the store, for every process, that a chat continues under another id."""
        await self._gateway.submit(RememberChat(channel=self._channel, chat=old, successor=new))
        self.note(old, new)

    def current_id(self, chat: str) -> str:
        """Return the current id of a chat, which differs if the chat moved."""
        return self._successors.get(chat, chat)

    async def with_first_id(self, message: InboundMessage) -> InboundMessage:
        """Return a message with the first id of its chat, from which its session key is made."""
        chat = message.place.chat
        if not message.is_direct and chat not in self._predecessors:
            # Another process may have received the notice.
            old = await self._gateway.store.channels.predecessor(self._channel, chat)
            if old is not None:
                self.note(old, chat)
        first = self._predecessors.get(chat, chat)
        return (
            message if first == chat else replace(message, place=replace(message.place, chat=first))
        )

    async def copy_session(self, source: Key, target: Key) -> None:
        """Append the items of the session `source` to `target`, each turn once.

        While one of the two is busy nothing is copied: the next message tries again. The source
        stays unchanged.
        """
        view = await self._gateway.read.session(self._tenant, key=source)
        if view is None or view.session.active_turn_id is not None or view.queued_turns:
            return
        session = view.session
        if self._copied.get(source) == session.head_seq:
            return
        items = await self._gateway.read.context(session)
        try:
            for number, turn_items in groupby(items, key=lambda item: item.turn_number):
                once = gateway_key("moved", self._channel, session.id, str(number))
                await self._append(target, list(turn_items), once)
        except SessionBusy:
            return
        self._copied[source] = session.head_seq
        log.info("channel.session_copied", channel=self._channel, session_id=session.id)

    async def _append(self, key: Key, items: Sequence[StoredItem], once: str) -> None:
        new_id = self._gateway.ids.new
        command = Append(
            tenant=self._tenant,
            turn_id=TurnId(new_id("turn")),
            worker=self._gateway.worker.id,
            candidate_id=SessionId(new_id("ses")),
            key=key,
            items=tuple(item.as_new() for item in items),
            idempotency_key=once,
            body_hash=blake2b(once.encode(), digest_size=16).digest(),
        )
        await append_items(self._gateway, command, on_busy="reject")
