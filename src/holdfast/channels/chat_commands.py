"""Run the commands of a chat: each once, even if it is delivered several times."""

from holdfast.channels.commands import ChatCommand, help_text
from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import SessionChanged, SessionNotFound
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.transaction.commands import QueueMessages, Reset, StopTurns
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.channel import InboundMessage

NEW_TEXT = "A new conversation has begun."
STOP_TEXT = "Stopped."


class ChatCommands:
    """The commands of one channel; each records its key and outcome in one commit."""

    def __init__(self, gateway: Gateway, settings: ChannelSettings, prefix: str) -> None:
        self._gateway = gateway
        self._settings = settings
        self._prefix = prefix
        self._tenant = Tenant(settings.tenant)

    async def run(
        self, command: ChatCommand, message: InboundMessage, key: Key, once: str
    ) -> str | None:
        """Run a command; return the text of the message that follows from it, or None.

        What comes with a new conversation, a text or files, is its first message.
        """
        match command.name:
            case "new" | "reset":
                is_message = bool(command.rest or message.attachments)
                await self._reset(message, key, once, is_silent=is_message)
                return command.rest if is_message else None
            case "stop":
                await self._stop(message, key, once)
            case "status":
                await self.reply(message, once, await self._status(key))
            case "whoami":
                name = message.sender_name or "unknown"
                text = f"You are {name} ({message.sender}). This conversation is `{key}`."
                await self.reply(message, once, text)
            case "help" | "start":
                await self.reply(message, once, help_text(self._prefix))
        return None

    def _message(self, message: InboundMessage, text: str) -> OutboxMessage:
        return OutboxMessage(
            channel=self._settings.name,
            chat=message.place.chat,
            thread=message.place.thread,
            text=text,
        )

    async def reply(self, message: InboundMessage, once: str, text: str) -> None:
        """Answer a command once."""
        await self._gateway.submit(
            QueueMessages(
                tenant=self._tenant,
                record_id=self._gateway.ids.new("rec"),
                idempotency_key=once,
                messages=(self._message(message, text),),
            )
        )

    async def _reset(
        self, message: InboundMessage, key: Key, once: str, *, is_silent: bool
    ) -> None:  # fmt: skip
        """Start the next generation; without a session there is nothing to reset."""
        for _ in range(5):
            view = await self._gateway.read.session(self._tenant, key=key)
            if view is None:
                break
            command = Reset(
                tenant=self._tenant,
                session_id=view.session.id,
                new_id=SessionId(self._gateway.ids.new("ses")),
                reason="chat_command",
                idempotency_key=once,
                messages=() if is_silent else (self._message(message, NEW_TEXT),),
            )
            try:
                await self._gateway.submit(command)
            except (SessionChanged, SessionNotFound):
                continue  # another reset came first: check the session that is live now
            return
        if not is_silent:
            await self.reply(message, once, NEW_TEXT)

    async def _stop(self, message: InboundMessage, key: Key, once: str) -> None:
        await self._gateway.submit(
            StopTurns(
                tenant=self._tenant,
                key=key,
                record_id=TurnId(self._gateway.ids.new("rec")),
                idempotency_key=once,
                messages=(self._message(message, STOP_TEXT),),
            )
        )

    async def _status(self, key: Key) -> str:
        view = await self._gateway.read.session(self._tenant, key=key)
        if view is None:
            return f"No conversation yet (`{key}`)."
        session = view.session
        lines = [
            f"{view.status}, {view.queued_turns} waiting",
            f"generation {session.generation}, {session.turn_count} turns",
            f"tokens: {session.input_tokens} in, {session.output_tokens} out",
            f"model: {self._settings.model or 'default'}",
            f"session `{session.id}`",
        ]
        return "\n".join(f"- {line}" for line in lines)
