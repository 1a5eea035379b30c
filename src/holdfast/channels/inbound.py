"""What arrives from a platform: judged, then made durable as a turn, a command or a pairing."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.channels.access import Verdict, is_addressed, judge
from holdfast.channels.approvals import FORBIDDEN, ChatApprovals
from holdfast.channels.chat_commands import ChatCommands
from holdfast.channels.commands import ChatCommand, parse_command
from holdfast.channels.conversations.imported_keys import ImportedKeys
from holdfast.channels.conversations.moved_chats import MovedChats
from holdfast.channels.conversations.session_keys import People, session_key
from holdfast.channels.settings import ChannelOnBusy, ChannelSettings
from holdfast.core.errors import (
    HoldfastError,
    IdempotencyMismatch,
    InvalidInput,
    LaneFull,
    NotFound,
    SessionBusy,
    SessionDeleted,
    StorageFull,
    StoreUnavailable,
    TenantFull,
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.delivery import Delivery, OutboxMessage, gateway_key
from holdfast.core.model.gateway_items import GatewayAttachment, store_item
from holdfast.core.model.items import NewItem, read_item
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.transaction.commands import (
    Accept,
    CountBotTurn,
    DeadLetterUpdate,
    EditWaiting,
    ForgetBotTurns,
    QueueMessages,
    RememberChat,
    RequestPairing,
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.ports.channel import ButtonPress, Capabilities, InboundMessage, PressResult
from holdfast.ports.request_context import begin_context

CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
MAX_TRIES = 3
MAX_REMEMBERED = 4096
MAX_FILES = 20
MAX_QUOTE = 2000
MAX_TEXT = 100_000
MAX_REASON = 300
REFUSAL_SECONDS = 600.0
"""Least time between two notices of refused messages in one conversation."""
REFUSAL_SLOTS = 5
"""Parts of that time; a notice takes the place of those that follow, up to the same one."""
EARLY_EDIT_SECONDS = 600.0
"""How old a message may be that comes after its own edit; platforms deliver again for minutes."""
FOLLOWS_SECONDS = 60.0
"""How old the message of a group may be for which its edit waits."""
ALBUM_SECONDS = 2.0
"""How long a part of an album waits for the mention in another part, or an edit for its message."""
ALBUM_POLL_SECONDS = 0.1
MAX_BOT_TURNS = 5
QUOTE_LABEL = "[Quoted text, not the sender's own words]"
NO_CONVERSATION = "There is no conversation yet."
BUSY_TEXT = "Too many messages wait here; this one was not accepted. Please try again later."
FULL_TEXT = (
    "This message was not accepted, because no more can be stored here. Please tell the operator."
)
UNUSABLE_TEXT = (
    "This message cannot be answered, because the gateway is not set up correctly. "
    "Please tell its operator."
)

Outcome = Literal[
    "accepted", "repeated", "command", "approval", "pairing", "ignored", "refused", "moved", "edit"
]


class InboundHandler:
    """The inbox of one channel."""

    def __init__(
        self,
        gateway: Gateway,
        turns: TurnService,
        settings: ChannelSettings,
        capabilities: Capabilities,
        *,
        people: People,
        reset: ResetPolicy,
        triggers: tuple[str, ...],
        attend: Callable[[TurnTicket], None],
    ) -> None:
        self._gateway = gateway
        self._turns = turns
        self._settings = settings
        self._capabilities = capabilities
        self._people = people
        self._reset = reset
        self._triggers = triggers
        self._attend = attend
        self._tenant = Tenant(settings.tenant)
        self._commands = ChatCommands(gateway, settings, capabilities.command_prefix)
        self._approvals = ChatApprovals(gateway, turns, settings, attend, self._commands.reply)
        self._tries: dict[str, int] = {}
        self._known_chats: set[tuple[str, ...]] = set()
        self.moved_chats = MovedChats(gateway, settings)
        self.imported_keys = ImportedKeys(gateway, self._tenant)
        self.outcomes: dict[str, int] = {}
        """How many messages were handled in which way."""

    @property
    def count(self) -> int:
        """How many messages were handled."""
        return sum(self.outcomes.values())

    async def handle(self, message: InboundMessage) -> None:
        """Make a message durable; record it as failed after three tries."""
        try:
            outcome = await self._handle(await self.moved_chats.with_first_id(message))
        except StoreUnavailable:
            raise
        except Exception as exc:
            tries = self._tries[message.unique_id] = self._tries.get(message.unique_id, 0) + 1
            log.exception("channel.update_failed", channel=self._settings.name, tries=tries)
            if tries < MAX_TRIES:
                raise
            await self._dead_letter(message, exc)
            outcome = "ignored"
        self._tries.pop(message.unique_id, None)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        sent_at = message.sent_at
        lag = self._gateway.clock.now() - sent_at if sent_at is not None else None
        self._gateway.meter.channel_received(self._settings.name, outcome, lag)

    async def press(self, press: ButtonPress) -> PressResult:
        """Act on a button if the person who pressed it may write here."""
        message = InboundMessage(
            unique_id=press.unique_id, place=press.place, sender=press.sender, text="",
            is_direct=press.is_direct, is_bot=press.is_bot,
        )  # fmt: skip
        try:
            message = await self.moved_chats.with_first_id(message)
            if not self._approvals.is_approver(message) and await self._judge(message) != "allow":
                return PressResult(FORBIDDEN)
            return await self._approvals.press(press, self._key_of(message))
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - the platform would deliver it without end; people press again
            log.exception("channel.press_failed", channel=self._settings.name)
            return PressResult("Something went wrong. Please try again.")

    async def _dead_letter(self, message: InboundMessage, exc: Exception) -> None:
        reason = exc.message if isinstance(exc, HoldfastError) else type(exc).__name__
        await self.reject(message.unique_id, reason)

    async def reject(self, update_id: str, reason: str) -> None:
        """Record an update that cannot be handled, for an operator to look at."""
        command = DeadLetterUpdate(
            channel=self._settings.name, update_id=update_id, reason=reason[:MAX_REASON]
        )
        await self._gateway.submit(command)

    async def _handle(self, message: InboundMessage) -> Outcome:
        if message.moved_to:
            await self.moved_chats.remember(message.place.chat, message.moved_to)
            return "moved"
        verdict = await self._judge(message)
        if verdict != "allow":
            return await self._turn_away(message, verdict)
        key = session_key(self._settings, self._people, message)
        key = await self.imported_keys.find(key)
        if message.is_edit:
            return await self._edit(message, key)
        message = await self._share_mention(message)
        await self._remember_chat(message)
        if await self._approvals.answer_in_words(message, self._key_of(message)):
            return "approval"
        command = self._parse_command(message)
        is_stop = command is not None and command.name == "stop"
        is_meant = is_stop or await self._is_addressed(message, key)
        if not is_meant or not await self._may_speak(message):
            return "ignored"
        if command is None:
            return await self._accept(message, key)
        if command.name == "compact":
            return await self._compact(message, key)
        rest = await self._commands.run(command, message, key, self._key_of(message))
        if rest is not None:
            return await self._accept(replace(message, text=rest), key, suffix="rest")
        return "command"

    async def _turn_away(self, message: InboundMessage, verdict: Verdict) -> Outcome:
        """Ignore or pair a sender who may not write; an approver's answer is still accepted."""
        may_answer = self._approvals.is_approver(message) and not message.is_edit
        answer = self._approvals.answer_in_words
        if may_answer and await answer(message, self._key_of(message)):
            return "approval"
        return "ignored" if verdict == "ignore" else await self._pair(message)

    async def _judge(self, message: InboundMessage) -> Verdict:
        if message.is_own:
            return "ignore"  # before any read: platforms report all our own messages and edits
        rows = await self._gateway.store.channels.pairings(self._settings.name)
        paired = {row.sender for row in rows if row.approved_at is not None}
        return judge(self._settings, message, paired)

    def _parse_command(self, message: InboundMessage) -> ChatCommand | None:
        if message.quote and not message.text:
            return None
        is_bare = self._capabilities.has_bare_commands and message.is_named
        prefix = self._capabilities.command_prefix
        return parse_command(message.text, prefix, self._triggers, is_bare=is_bare)

    async def _share_mention(self, message: InboundMessage) -> InboundMessage:
        """Return a part of an album with the mention that another part has.

        The caption, and so the mention, is on one of them only. It is recorded before that part
        is accepted: the others may come to another process, or after a crash.
        """
        if not message.album or message.is_direct:
            return message
        place = message.place
        album = gateway_key(
            "album", self._settings.name, place.chat, message.album, message.sender
        )  # fmt: skip
        if message.is_mention:
            await self._queue(album, ())
            return message
        if is_addressed(self._settings, message):
            return message
        is_mention = await self._is_recorded(album)
        return replace(message, is_mention=is_mention)

    async def _is_recorded(self, key: str) -> bool:
        """Whether a key is used; parts that come one by one cannot wait for those behind them."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (0.0 if self._capabilities.is_polled else ALBUM_SECONDS)
        while not await self._gateway.store.channels.is_recorded(self._tenant, key):
            if loop.time() >= until:
                return False
            await asyncio.sleep(ALBUM_POLL_SECONDS)
        return True

    async def _is_addressed(self, message: InboundMessage, key: Key) -> bool:
        """Whether a message is meant for us, or continues a thread in which we answer."""
        if is_addressed(self._settings, message):
            return True
        is_reply = message.place.thread not in ("", message.message_id)
        if not self._capabilities.follows_threads or not is_reply:
            return False
        return await self._gateway.read.session(self._tenant, key=key) is not None

    async def _may_speak(self, message: InboundMessage) -> bool:
        """Whether to answer: people always, bots only a bounded number of times in a row.

        Their commands count too: `/new` with a text begins a turn, and so may every answer.
        """
        if not self._settings.bots:
            return not message.is_bot
        channel, chat = self._settings.name, message.place.chat
        if not message.is_bot:
            await self._gateway.submit(ForgetBotTurns(channel=channel, chat=chat))
            return True
        digest = blake2b(message.unique_id.encode(), digest_size=8).hexdigest()
        return await self._gateway.submit(
            CountBotTurn(channel=channel, chat=chat, message=digest, limit=MAX_BOT_TURNS)
        )

    def _key_of(self, message: InboundMessage, suffix: str = "") -> str:
        more = (suffix,) if suffix else ()
        return gateway_key("channel", self._settings.name, message.unique_id, *more)

    async def _remember_chat(self, message: InboundMessage) -> None:
        """Record a chat, and its other ids, when this process sees it for the first time."""
        chat = message.place.chat
        # In a group the aliases belong to the sender, not to the chat.
        aliases = message.aliases if message.is_direct else ()
        names = (chat, *aliases)
        if names in self._known_chats:
            return
        await self._gateway.submit(
            RememberChat(channel=self._settings.name, chat=chat, aliases=aliases)
        )
        if len(self._known_chats) >= MAX_REMEMBERED:
            self._known_chats.clear()
        self._known_chats.add(names)

    async def _pair(self, message: InboundMessage) -> Outcome:
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(8))
        command = RequestPairing(
            tenant=self._tenant,
            channel=self._settings.name,
            sender=message.sender,
            name=message.sender_name[:100],
            code=code,
            chat=message.place.chat,
            record_id=self._gateway.ids.new("rec"),
            idempotency_key=self._key_of(message),
        )
        await self._gateway.submit(command)
        return "pairing"

    # ── turns ───────────────────────────────────────────────────────────────────────────────

    async def _edit(self, message: InboundMessage, key: Key) -> Outcome:
        """Replace a message that waits; a later edit runs nothing."""
        message = await self._without_known_quote(message, key)
        command = EditWaiting(
            tenant=self._tenant,
            key=key,
            edited_key=gateway_key("channel", self._settings.name, message.original_id),
            items=(user_item(message), *self._files(message)),
            record_id=TurnId(self._gateway.ids.new("rec")),
            idempotency_key=self._key_of(message),
        )
        if self._parse_command(message) is not None:
            return "edit"
        is_known = await self._gateway.submit(command) is not None
        if is_known or not self._may_be_early(message):
            if not is_known and self._may_follow(message):
                await self._edit_when_known(command)
            return "edit"
        # The message itself will be a repeat; one that has just come is edited after all.
        as_message = replace(message, unique_id=message.original_id, is_edit=False)
        outcome = await self._accept(as_message, key)
        if outcome == "repeated":
            await self._gateway.submit(command)
            return "edit"
        return outcome

    def _may_be_early(self, message: InboundMessage) -> bool:
        """Whether the edit of an unknown message has overtaken it, on its way to another process.

        Otherwise the message was not meant for us, and no edit changes that.
        """
        if self._capabilities.is_polled or message.is_bot or message.first_sent_at is None:
            return False
        age = self._gateway.clock.now() - message.first_sent_at
        return age <= EARLY_EDIT_SECONDS and (message.is_direct or message.was_mention is True)

    def _may_follow(self, message: InboundMessage) -> bool:
        """Whether a message of a group may still come behind its edit, and may be meant for us."""
        if self._capabilities.is_polled or message.was_mention is not None:
            return False
        sent_at = message.first_sent_at
        return sent_at is not None and self._gateway.clock.now() - sent_at <= FOLLOWS_SECONDS

    async def _edit_when_known(self, command: EditWaiting) -> None:
        """Wait a moment for the message of an edit that came first, then edit it."""
        if await self._is_recorded(command.edited_key):
            await self._gateway.submit(command)

    async def _compact(self, message: InboundMessage, key: Key) -> Outcome:
        """Accept a turn that compacts the conversation, behind those that wait."""
        view = await self._gateway.read.session(self._tenant, key=key)
        if view is None:
            await self._commands.reply(message, self._key_of(message), NO_CONVERSATION)
            return "command"
        # Without a sender: it must not become part of a burst.
        delivery = replace(self._delivery(message), sender="", collect_seconds=0.0)
        request = replace(self._request(delivery), is_compaction=True, fields={})
        accept = replace(
            self._command(message, key, delivery, request, ""),
            items=(read_item(b'{"type":"compaction_trigger"}'),),
            on_busy="enqueue",
        )
        outcome = await self._submit(message, accept, request)
        return "command" if outcome == "accepted" else outcome

    async def _without_known_quote(self, message: InboundMessage, key: Key) -> InboundMessage:
        """Return a message without a quote that the model sees in the conversation anyway."""
        if not message.quote or not message.answered_id:
            return message
        place, name = message.place, self._settings.name
        session = await self._gateway.store.channels.session_of(
            self._tenant, name, place.chat, message.reply_to,
            gateway_key("channel", name, message.answered_id),
        )  # fmt: skip
        if session is None:
            return message
        view = await self._gateway.read.session(self._tenant, key=key)
        is_here = view is not None and view.session.id == session
        return replace(message, quote="") if is_here else message

    async def _accept(self, message: InboundMessage, key: Key, suffix: str = "") -> Outcome:
        await self._copy_moved(message, key)
        message = await self._without_known_quote(message, key)
        delivery = self._delivery(message)
        request = self._request(delivery)
        storage, limits = self._gateway.storage, self._gateway.limits
        accept = replace(
            self._command(message, key, delivery, request, suffix),
            limits=await storage.limits(self._tenant, limits),
        )
        outcome = await self._submit(message, accept, request)
        if outcome == "accepted":
            storage.note(self._tenant, sum(len(item.body) for item in accept.items))
        return outcome

    async def _copy_moved(self, message: InboundMessage, key: Key) -> None:
        """Copy the messages that arrived under a moved chat's new id before the move was known."""
        chat = self.moved_chats.current_id(message.place.chat)
        if chat != message.place.chat:
            place = replace(message.place, chat=chat)
            other = session_key(self._settings, self._people, replace(message, place=place))
            await self.moved_chats.copy_session(other, key)

    async def _submit(
        self, message: InboundMessage, accept: Accept, request: TurnRequest
    ) -> Outcome:
        begin_context(self._gateway.ids.new("req"), self._tenant)
        try:
            ticket = await self._turns.accept(accept, request, is_live=True)
        except (SessionDeleted, IdempotencyMismatch):
            return "repeated"
        except (LaneFull, TenantFull, SessionBusy) as exc:
            return await self._refuse(message, accept, exc, BUSY_TEXT)
        except StorageFull as exc:
            return await self._refuse(message, accept, exc, FULL_TEXT)
        except (InvalidInput, NotFound) as exc:
            # The channel's model or tools do not exist: no further try would help.
            await self._dead_letter(message, exc)
            return await self._refuse(message, accept, exc, UNUSABLE_TEXT)
        await self._approvals.deny_before(ticket, message.sender)
        if ticket.task is None:
            return "repeated"
        self._attend(ticket)
        return "accepted"

    def _delivery(self, message: InboundMessage) -> Delivery:
        seconds = self._settings.collect_seconds
        return Delivery(
            channel=self._settings.name,
            chat=message.place.chat,
            thread=message.place.thread,
            sender=message.sender,
            reply_to="" if message.is_direct else message.message_id,
            collect_seconds=seconds * 2 if message.is_album else seconds,
        )

    def _request(self, delivery: Delivery) -> TurnRequest:
        fields: dict[str, msgspec.Raw] = {}
        if self._settings.instructions:
            fields["instructions"] = msgspec.Raw(msgspec.json.encode(self._settings.instructions))
        if self._settings.tools:
            fields["tools"] = msgspec.Raw(msgspec.json.encode(tool_values(self._settings.tools)))
        return TurnRequest(
            api="responses",
            model=self._settings.model,
            fields=fields,
            is_stream=True,
            sender=self._approvals.identity(delivery.sender),
            approvers=self._approvals.approvers,
            delivery=delivery,
        )

    def _command(
        self,
        message: InboundMessage,
        key: Key,
        delivery: Delivery,
        request: TurnRequest,
        suffix: str,
    ) -> Accept:
        new_id = self._gateway.ids.new
        return Accept(
            tenant=self._tenant,
            turn_id=TurnId(new_id("turn")),
            run_id=RunId(new_id("run")),
            worker=self._gateway.worker.id,
            candidate_id=SessionId(new_id("ses")),
            key=key,
            items=(user_item(message), *self._files(message)),
            request=write_request(request),
            source="channel",
            on_busy=self._on_busy(message),
            idempotency_key=self._key_of(message, suffix),
            collect_seconds=delivery.collect_seconds,
            limits=self._gateway.limits,
            reset=self._reset,
        )

    def _on_busy(self, message: InboundMessage) -> ChannelOnBusy:
        """Return what a message does in a busy lane; files are loaded when a run begins."""
        is_joining = self._settings.on_busy == "steer"
        return "enqueue" if is_joining and message.attachments else self._settings.on_busy

    def _files(self, message: InboundMessage) -> list[NewItem]:
        """Return the files of a message as items: references, which the run follows."""
        return [
            store_item(
                GatewayAttachment(
                    id=self._gateway.ids.new("gwf"),
                    channel=self._settings.name,
                    **msgspec.structs.asdict(attachment),
                )
            )
            for attachment in message.attachments[:MAX_FILES]
        ]

    async def _refuse(
        self, message: InboundMessage, accept: Accept, exc: HoldfastError, reason: str
    ) -> Outcome:
        """Record that a message was not accepted; say so at most every ten minutes."""
        log.warning("channel.refused", channel=self._settings.name, code=exc.code)
        slot = int(self._gateway.clock.now() / REFUSAL_SECONDS * REFUSAL_SLOTS)
        place = message.place
        name = self._settings.name
        notices = [
            gateway_key("refusal", name, place.chat, place.thread, f"{number}/{REFUSAL_SLOTS}")
            for number in range(slot, slot + REFUSAL_SLOTS + 1)
        ]
        text = OutboxMessage(
            channel=self._settings.name, chat=place.chat, thread=place.thread, text=reason
        )
        await self._queue(notices[0], (text,), tuple(notices[1:]))
        # Last: a message that is delivered again after this is not judged, or told of, again.
        assert accept.idempotency_key is not None
        await self._queue(accept.idempotency_key, ())
        return "refused"

    async def _queue(
        self, key: str, messages: tuple[OutboxMessage, ...], more_keys: tuple[str, ...] = ()
    ) -> None:
        await self._gateway.submit(
            QueueMessages(
                tenant=self._tenant,
                record_id=self._gateway.ids.new("rec"),
                idempotency_key=key,
                more_keys=more_keys,
                messages=messages,
            )
        )


def tool_values(names: tuple[str, ...]) -> list[Mapping[str, str]]:
    """Return the tools of a channel or schedule as a request names them."""
    return [
        {"type": "mcp", "server_label": name.removeprefix("mcp:")}
        if name.startswith("mcp:")
        else {"type": "holdfast", "name": name}
        for name in names
    ]


def user_item(message: InboundMessage) -> NewItem:
    """Return a message as an item of the transcript.

    What somebody else said is a part of its own with a label; in groups the sender is named.
    """
    parts: list[dict[str, str]] = []
    if message.quote:
        quote = f"{QUOTE_LABEL}\n{message.quote[:MAX_QUOTE]}"
        parts.append({"type": "input_text", "text": quote})
    text = message.text[:MAX_TEXT]
    for attachment in message.attachments:
        text += f"\n[attachment: {attachment.kind} {attachment.name}]".rstrip()
    if not message.is_direct:
        name = " ".join(message.sender_name.split())[:64].replace("]", "") or message.sender
        text = f"[{name}] {text}"
    parts.append({"type": "input_text", "text": text.strip() or "(empty message)"})
    value = {"type": "message", "role": "user", "content": parts}
    return read_item(msgspec.json.encode(value))
