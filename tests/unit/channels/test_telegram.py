"""The Telegram adapter passes the channel contract and reads what people send."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.channels.settings import ChannelSettings
from holdfast.channels.telegram.channel import TelegramChannel
from holdfast.channels.telegram.updates import Message, Update, User, read_message
from holdfast.ports.channel import (
    Attachment,
    ChatPlace,
    DeliveryDelayed,
    DeliveryError,
    DeliveryImpossible,
    DeliveryRefused,
    MessageGone,
)
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.testing.channel_contract import ChannelContract, CollectingInbox
from holdfast.testing.platforms import TelegramSimulator
from tests.unit.channels.simulated import SimulatedChannel


class TelegramPlatform(SimulatedChannel[TelegramChannel]):
    """A bot and its simulated platform."""

    simulator: TelegramSimulator
    place = ChatPlace("7")

    def is_acknowledged(self) -> bool:
        return bool(self.simulator.confirmed)

    def files(self) -> list[tuple[str, bytes]]:
        found = [one.file for one in self.simulator.sent if one.file is not None]
        return [(file.name, file.content) for file in found]

    def block(self) -> None:
        self.simulator.blocked.add(7)


@pytest.fixture
async def platform() -> AsyncIterator[TelegramPlatform]:
    """A bot that is connected to a simulated Telegram."""
    with TelegramSimulator() as simulator:
        settings = ChannelSettings(
            name="support", kind="telegram", url=simulator.url, token="42:TEST"
        )
        http = PlainHttpCaller()
        yield TelegramPlatform(simulator, TelegramChannel(settings, http))
        await http.close()


class TestTelegram(ChannelContract): ...


async def test_an_update_that_cannot_be_read_is_recorded(platform: TelegramPlatform) -> None:
    inbox = CollectingInbox()
    platform.simulator.say("odd", message_id="not a number")
    platform.say("next")
    receiving = asyncio.ensure_future(platform.channel.receive(inbox))
    while not inbox.messages:
        await inbox.wait()
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    assert len(inbox.rejected) == 1


async def test_an_update_that_is_nested_too_deeply_is_recorded(platform: TelegramPlatform) -> None:
    settings = ChannelSettings(
        name="support", kind="telegram", url=platform.simulator.url, token="42:TEST", secret="hush"
    )
    http = PlainHttpCaller()
    channel, inbox = TelegramChannel(settings, http), CollectingInbox()
    body = b'{"update_id":1,"message":' * 5000 + b"1" + b"}" * 5000
    headers = {"x-telegram-bot-api-secret-token": "hush"}
    assert await channel.webhook(headers, body, inbox) == b"{}"
    assert len(inbox.rejected) == 1
    await http.close()


def read(**fields: Any) -> Any:
    """Return what the adapter makes of a private message with these fields."""
    value = {"message_id": 1, "chat": {"id": 7}, "from": {"id": 7}, **fields}
    return read_message(Update(1, message=msgspec.convert(value, Message)), User(42))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sticker": {"file_id": "s", "emoji": "👍"}}, "[sticker 👍]"),
        ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[location: 52.5, 13.4]"),
        ({"contact": {"first_name": "Ada", "phone_number": "+1"}}, "[contact: Ada, +1]"),
        ({"poll": {"question": "Tea?"}}, "[poll: Tea?]"),
        ({"dice": {"emoji": "🎲", "value": 3}}, "[dice 🎲: 3]"),
        (
            {
                "venue": {"title": "Zoo", "address": "Main St"},
                "location": {"latitude": 1, "longitude": 2},
            },
            "[place: Zoo, Main St]",
        ),
    ],
)
def test_content_without_text_is_described_in_words(fields: dict[str, Any], text: str) -> None:
    assert read(**fields).text == text


@pytest.mark.parametrize("name", ["new_chat_members", "pinned_message", "new_chat_title"])
def test_a_note_of_the_service_is_no_message(name: str) -> None:
    assert read(**{name: "anything"}) is None


def test_a_video_is_a_file_and_an_animation_is_one_file() -> None:
    video = {"file_id": "v", "mime_type": "video/mp4"}
    assert [one.reference for one in read(video=video).attachments] == ["v"]
    assert [one.reference for one in read(animation=video, document=video).attachments] == ["v"]


async def test_an_impossible_topic_is_refused_at_once(platform: TelegramPlatform) -> None:
    with pytest.raises(DeliveryImpossible, match="'abc' is not the id of a topic"):
        await platform.channel.send(ChatPlace("7", "abc"), "hello", plain=True)


async def test_a_message_that_cannot_be_edited_any_more_is_gone(platform: TelegramPlatform) -> None:
    sent = await platform.channel.send(platform.place, "one", plain=True)
    description = "Bad Request: message can't be edited"
    platform.simulator.fail_next("editMessageText", code=400, description=description)
    with pytest.raises(MessageGone):
        await platform.channel.edit(platform.place, sent, "two", plain=True)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, DeliveryDelayed),
        (500, DeliveryDelayed),
        (503, DeliveryDelayed),
        (404, DeliveryRefused),
        (403, DeliveryRefused),
    ],
)
async def test_a_failed_download_reports_whether_it_is_retryable(
    platform: TelegramPlatform, status: int, error: type[DeliveryError]
) -> None:
    simulator, picture = platform.simulator, Attachment(reference="f1", kind="image")
    simulator.files["f1"] = b"content"
    simulator.file_status = status
    with pytest.raises(error, match=str(status)) as failure:
        await platform.channel.download(picture, 100)
    assert "42:TEST" not in failure.value.message, "the address holds the token"
    simulator.file_status = 200
    assert await platform.channel.download(picture, 100) == b"content"
