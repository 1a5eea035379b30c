"""The Slack adapter passes the channel contract and reads Slack's events."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.channels.settings import ChannelSettings
from holdfast.channels.slack.channel import SlackChannel
from holdfast.channels.slack.events import decode_text
from holdfast.channels.slack.manifest import app_manifest
from holdfast.ports.channel import (
    Attachment,
    ChatPlace,
    DeliveryDelayed,
    DeliveryError,
    DeliveryImpossible,
    DeliveryRefused,
    MessageGone,
    WebhookRejected,
)
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.testing.channel_contract import ChannelContract, CollectingInbox
from holdfast.testing.platforms import PlatformAnswer, SlackSimulator
from tests.unit.channels.simulated import SimulatedChannel

ROOT = Path(__file__).parents[3]


class SlackPlatform(SimulatedChannel[SlackChannel]):
    """An app and its simulated workspace."""

    simulator: SlackSimulator
    place = ChatPlace("U7")

    def is_acknowledged(self) -> bool:
        return self.simulator.unacknowledged == 0

    def files(self) -> list[tuple[str, bytes]]:
        shared = [file_id for one in self.simulator.posted for file_id in one.files]
        found = [self.simulator.files[file_id] for file_id in shared]
        return [(name, content) for name, _, content in found]

    def block(self) -> None:
        self.simulator.blocked.add("D7")


@pytest.fixture
async def platform() -> AsyncIterator[SlackPlatform]:
    """An app that is connected to a simulated workspace."""
    with SlackSimulator() as simulator:
        settings = ChannelSettings(
            name="work", kind="slack", url=simulator.url, token="xoxb-TEST", app_token="xapp-TEST"
        )
        http = PlainHttpCaller()
        yield SlackPlatform(simulator, SlackChannel(settings, http))
        await http.close()


class TestSlack(ChannelContract): ...


async def receive(platform: SlackPlatform, inbox: CollectingInbox, count: int) -> None:
    """Receive until so many messages arrived and Slack knows it."""
    receiving = asyncio.ensure_future(platform.channel.receive(inbox))
    async with asyncio.timeout(20):
        while len(inbox.messages) < count:
            await inbox.wait()
        await asyncio.to_thread(platform.simulator.wait, platform.is_acknowledged)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)


@pytest.mark.parametrize("mentions_first", [False, True])
async def test_a_mention_and_its_message_are_one_message_in_any_order(
    platform: SlackPlatform, mentions_first: bool
) -> None:
    platform.simulator.mentions_first = mentions_first
    ts = platform.simulator.say("<@UBOT> what is 1 &lt; 2?", channel="C1")
    inbox = CollectingInbox()
    await receive(platform, inbox, 2)
    first, second = inbox.messages
    assert first == second
    assert (first.unique_id, first.place) == (f"T1:C1:{ts}", ChatPlace("C1", ts))
    assert (first.text, first.sender, first.sender_name) == ("what is 1 < 2?", "U7", "User7")
    assert first.is_mention
    assert not first.is_direct


async def test_unfolded_links_and_deletions_are_no_messages_and_edits_are_marked(
    platform: SlackPlatform,
) -> None:
    ts = platform.simulator.say("see https://example.org")
    platform.simulator.unfurl(ts)
    platform.simulator.edit(ts, "see nothing")
    platform.simulator.delete(ts)
    inbox = CollectingInbox()
    await receive(platform, inbox, 2)
    original, edit = inbox.messages
    assert (original.is_edit, edit.is_edit) == (False, True)
    assert (edit.text, edit.message_id) == ("see nothing", ts)
    assert edit.unique_id.startswith(f"{original.unique_id}:")


async def test_own_messages_come_back_and_are_known_as_own(platform: SlackPlatform) -> None:
    sent = await platform.channel.send(platform.place, "hello", plain=True)
    inbox = CollectingInbox()
    await receive(platform, inbox, 1)
    (message,) = inbox.messages
    assert (message.is_own, message.is_bot, message.message_id) == (True, True, sent)


async def test_direct_threads_groups_and_channels_have_their_places(
    platform: SlackPlatform,
) -> None:
    simulator = platform.simulator
    parent = simulator.say("direct")
    simulator.say("in a direct thread", thread=parent)
    group = simulator.say("<@UBOT> group", channel="G1")
    channel = simulator.say("in a channel's thread", channel="C1", thread="1.5")
    inbox = CollectingInbox()
    await receive(platform, inbox, 5)
    places = {message.message_id: message for message in inbox.messages}
    assert inbox.messages[1].place == ChatPlace("U7", parent)
    assert (places[group].place, places[group].group_kind) == (ChatPlace("G1"), "group")
    assert places[channel].place == ChatPlace("C1", "1.5")
    assert places[channel].group_kind == "channel"


async def test_a_connection_that_slack_ends_is_replaced_and_nothing_is_lost(
    platform: SlackPlatform,
) -> None:
    simulator, inbox = platform.simulator, CollectingInbox()
    receiving = asyncio.ensure_future(platform.channel.receive(inbox))
    simulator.say("one")
    await inbox.wait()
    simulator.refresh()
    simulator.say("two")
    await inbox.wait()
    assert simulator.opened_sockets == 2
    assert [message.text for message in inbox.messages] == ["one", "two"]
    simulator.cut()
    with pytest.raises(DeliveryDelayed):
        async with asyncio.timeout(20):
            await receiving


async def test_a_burst_arrives_in_its_order(platform: SlackPlatform) -> None:
    for number in range(50):
        platform.simulator.say(f"number {number}")
    inbox = CollectingInbox()
    await receive(platform, inbox, 50)
    assert [message.text for message in inbox.messages] == [f"number {n}" for n in range(50)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": "ratelimited", "retry_after": 7}, DeliveryDelayed),
        ({"error": "internal_error"}, DeliveryDelayed),
        ({"error": "invalid_auth"}, DeliveryDelayed),
        ({"error": "is_archived"}, DeliveryImpossible),
        ({"error": "msg_too_long"}, DeliveryRefused),
        ({"error": "message_not_found"}, MessageGone),
    ],
)
async def test_errors_say_whether_they_concern_the_message(
    platform: SlackPlatform, error: dict[str, Any], kind: type[DeliveryError]
) -> None:
    platform.simulator.fail_next("chat.postMessage", **error)
    with pytest.raises(kind) as caught:
        await platform.channel.send(platform.place, "hello", plain=True)
    if isinstance(caught.value, DeliveryDelayed) and "retry_after" in error:
        assert caught.value.retry_after == 7


async def test_a_wrong_app_token_is_reported_at_once(platform: SlackPlatform) -> None:
    platform.simulator.app_token = "xapp-another"
    assert platform.simulator.connections == 0
    with pytest.raises(DeliveryDelayed, match="invalid_auth"):
        await platform.channel.receive(CollectingInbox())
    with pytest.raises(DeliveryDelayed, match="invalid_auth"):
        await platform.channel.check()


async def test_a_webhook_is_believed_only_with_a_recent_signature(
    platform: SlackPlatform,
) -> None:
    settings = ChannelSettings(
        name="work", kind="slack", url=platform.simulator.url, token="xoxb-TEST", secret="hush"
    )
    http = PlainHttpCaller()
    channel = SlackChannel(settings, http, now=lambda: 1000.0)
    event = {"type": "message", "channel": "D7", "user": "U7", "text": "hi", "ts": "1.5"}
    body = json.dumps({"type": "event_callback", "event": event}).encode()

    def signed(stamp: int, secret: bytes = b"hush", content: bytes = body) -> dict[str, str]:
        digest = hmac.new(secret, b"v0:%d:" % stamp + content, hashlib.sha256).hexdigest()
        return {"x-slack-request-timestamp": str(stamp), "x-slack-signature": f"v0={digest}"}

    inbox = CollectingInbox()
    odd = [{**signed(1000), "x-slack-request-timestamp": stamp} for stamp in ("9" * 5000, "²", "x")]
    rejected = [{}, signed(1000, b"other"), signed(600), signed(1400), signed(1000, b""), *odd]
    for headers in rejected:
        with pytest.raises(WebhookRejected):
            await channel.webhook(headers, body, inbox)
    assert inbox.messages == []
    await channel.webhook(signed(1200), body, inbox)
    assert [message.text for message in inbox.messages] == ["hi"]
    challenge = b'{"type": "url_verification", "challenge": "c1"}'
    reply = await channel.webhook(signed(1000, content=challenge), challenge, inbox)
    assert reply == b'{"challenge":"c1"}'
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    nested = (
        b'{"type":"event_callback","event":' + deep + b"}", b"payload=" + deep,
        b'{"type":"event_callback","event":' + b"[" * 900 + b"]" * 900 + b"}",
    )  # fmt: skip
    for content in (b"payload=", b"payload=1", b"payload=%ff", b"command=%2Fx", *nested):
        await channel.webhook(signed(1000, content=content), content, inbox)
    assert len(inbox.messages) == 1, "what is signed and not known does nothing"
    await http.close()


async def test_files_are_read_from_slack_alone_and_within_bounds(platform: SlackPlatform) -> None:
    platform.simulator.files["F1"] = ("a.txt", "text/plain", b"x" * 100)
    attachment = Attachment(reference="F1", kind="file")
    assert await platform.channel.download(attachment, 100) == b"x" * 100
    with pytest.raises(DeliveryRefused):
        await platform.channel.download(attachment, 99)
    foreign = {"ok": True, "file": {"url_private": "https://files.slack.com.evil.example/x"}}
    platform.simulator.fail(
        lambda method, _: PlatformAnswer(foreign) if method == "files.info" else None
    )
    with pytest.raises(DeliveryRefused, match="own hosts"):
        await platform.channel.download(attachment, 100)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a &amp;lt; b", "a &lt; b"),
        ("<https://f.org|f> and <https://g.org>", "f (https://f.org) and https://g.org"),
        ("<@U2> in <#C3|general>, <!here>", "@U2 in #general, @here"),
        ("<mailto:a@b.org|a@b.org>", "a@b.org"),
    ],
)
def test_slacks_codes_are_read_as_people_see_them(text: str, plain: str) -> None:
    assert decode_text(text) == plain


def test_the_how_to_page_has_the_manifest_of_the_code() -> None:
    page = (ROOT / "docs/how-to/connect-slack.md").read_text()
    manifest = page.partition("```json\n")[2].partition("```")[0]
    assert json.loads(manifest) == app_manifest("Holdfast")
