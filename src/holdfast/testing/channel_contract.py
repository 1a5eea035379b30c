"""The contract of channels: the promises of `ports.channel`, as tests to run on an adapter.

A test module inherits `ChannelContract` and provides a fixture `platform`: a `Platform` with the
adapter and methods to act as the people and servers of the platform.
"""

import asyncio
from typing import Protocol

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.ports.channel import (
    ButtonPress,
    Channel,
    ChatPlace,
    DeliveryDelayed,
    DeliveryImpossible,
    InboundMessage,
    OutgoingFile,
    PressResult,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


class Platform(Protocol):
    """A simulated platform and the channel that is connected to it."""

    @property
    def channel(self) -> Channel:
        """The adapter."""
        ...

    def say(self, text: str) -> None:
        """Send a direct message as a person."""
        ...

    def repeat_last(self) -> None:
        """Deliver the last message again."""
        ...

    def is_acknowledged(self) -> bool:
        """Whether the platform will not redeliver the last message."""
        ...

    def texts(self) -> list[str]:
        """Return the messages that arrived, with their current text."""
        ...

    def files(self) -> list[tuple[str, bytes]]:
        """Return the files that arrived, as names and contents."""
        ...

    def block(self) -> None:
        """Block the bot as the person."""
        ...

    def go_away(self) -> None:
        """Stop answering."""
        ...

    @property
    def place(self) -> ChatPlace:
        """The person's direct chat."""
        ...


class CollectingInbox:
    """Collects what arrives; rejects the first `failures` messages."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.messages: list[InboundMessage] = []
        self.presses: list[ButtonPress] = []
        self.rejected: list[str] = []
        self.news = asyncio.Event()

    async def handle(self, message: InboundMessage) -> None:
        """Add a message, or fail like a store that is unavailable."""
        self.news.set()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the store is away")
        self.messages.append(message)

    async def press(self, press: ButtonPress) -> PressResult:
        """Add a press of a button."""
        self.news.set()
        self.presses.append(press)
        return PressResult("Allowed.", "done")

    async def reject(self, update_id: str, reason: str) -> None:  # noqa: ARG002 - of the port
        """Add an update that cannot be read."""
        self.news.set()
        self.rejected.append(update_id)

    async def wait(self) -> None:
        """Wait until something arrives."""
        async with asyncio.timeout(20):
            await self.news.wait()
        self.news.clear()


class ChannelContract:
    """An adapter translates and makes no decisions."""

    async def test_a_message_that_was_not_handled_is_not_acknowledged(
        self, platform: Platform
    ) -> None:
        inbox = CollectingInbox(failures=1)
        platform.say("hello")
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(20):
                await platform.channel.receive(inbox)
        assert not platform.is_acknowledged()
        receiving = asyncio.ensure_future(platform.channel.receive(inbox))
        inbox.news.clear()
        await inbox.wait()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        assert [message.text for message in inbox.messages] == ["hello"]

    async def test_a_redelivery_has_the_same_unique_id(self, platform: Platform) -> None:
        inbox = CollectingInbox()
        receiving = asyncio.ensure_future(platform.channel.receive(inbox))
        platform.say("once")
        await inbox.wait()
        platform.repeat_last()
        await inbox.wait()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        first, second = inbox.messages
        assert (first.unique_id, first.text) == (second.unique_id, second.text)
        assert first.is_direct
        assert not first.is_own

    async def test_a_message_that_is_no_valid_text_keeps_no_other_waiting(
        self, platform: Platform
    ) -> None:
        inbox = CollectingInbox()
        platform.say("lone \ud800 surrogate")
        platform.say("next")
        receiving = asyncio.ensure_future(platform.channel.receive(inbox))
        while len(inbox.messages) < 2:
            await inbox.wait()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        assert [message.text for message in inbox.messages] == ["lone \ufffd surrogate", "next"]

    async def test_a_message_is_sent_and_edited_and_the_same_edit_is_no_error(
        self, platform: Platform
    ) -> None:
        channel = platform.channel
        sent = await channel.send(platform.place, "**one** <two>", plain=False)
        assert platform.texts() == ["one <two>"]
        if channel.capabilities.can_edit:
            for _ in range(2):
                await channel.edit(platform.place, sent, "three", plain=False)
            assert platform.texts() == ["three"]
        await channel.show_typing(platform.place)

    async def test_a_file_arrives_with_its_name_and_bytes(self, platform: Platform) -> None:
        channel = platform.channel
        sent = [
            OutgoingFile(name="größe 1.png", media_type="image/png", content=PNG),
            OutgoingFile(name="notes.txt", media_type="text/plain", content=b"--\r\nline\r\n"),
            OutgoingFile(name="broken.png", media_type="image/png", content=b"no picture"),
        ]
        if channel.capabilities.max_file_bytes:
            ids = [await channel.send_file(platform.place, file) for file in sent]
            assert len(set(ids)) == len(sent)
            assert platform.files() == [(file.name, file.content) for file in sent]

    async def test_a_chat_that_blocked_us_and_a_platform_outage_are_distinguished(
        self, platform: Platform
    ) -> None:
        platform.block()
        with pytest.raises(DeliveryImpossible):
            await platform.channel.send(platform.place, "hello", plain=True)
        file = OutgoingFile(name="a.txt", media_type="text/plain", content=b"a")
        if platform.channel.capabilities.max_file_bytes:
            with pytest.raises(DeliveryImpossible):
                await platform.channel.send_file(platform.place, file)
        platform.go_away()
        with pytest.raises(DeliveryDelayed):
            await platform.channel.send(platform.place, "hello", plain=True)
