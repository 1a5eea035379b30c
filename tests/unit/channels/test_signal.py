"""The Signal adapter passes the channel contract, and speaks as signal-cli does."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.channels.access import judge
from holdfast.channels.conversations.session_keys import session_key
from holdfast.channels.settings import ChannelSettings
from holdfast.channels.signal.channel import SignalChannel
from holdfast.channels.signal.envelopes import read_event, read_message
from holdfast.channels.signal.styles import to_signal
from holdfast.core.errors import InvalidSetting, StoreUnavailable
from holdfast.ports.channel import (
    Attachment,
    ChatPlace,
    DeliveryDelayed,
    DeliveryImpossible,
    DeliveryRefused,
    InboundMessage,
)
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.simulator.platforms.signal import ACCOUNT, GROUP, user_uuid
from holdfast.testing.channel_contract import ChannelContract, CollectingInbox
from holdfast.testing.platforms import SignalSimulator
from tests.unit.channels.simulated import SimulatedChannel


def _settings(url: str = "", **more: Any) -> ChannelSettings:
    values = {"account": ACCOUNT, **more}
    return ChannelSettings(name="phone", kind="signal", url=url, **values)


class SignalPlatform(SimulatedChannel[SignalChannel]):
    """An account and its simulated daemon."""

    simulator: SignalSimulator
    place = ChatPlace(user_uuid(7))

    def __init__(self, simulator: SignalSimulator, http: PlainHttpCaller) -> None:
        super().__init__(simulator, SignalChannel(_settings(simulator.url), http))
        self.http = http

    def is_acknowledged(self) -> bool:
        return self.simulator.resumed_behind[-1] == str(self.simulator.last_event)

    def files(self) -> list[tuple[str, bytes]]:
        found = [file for one in self.simulator.sent for file in one.attachments]
        return [(file.name, file.content) for file in found]

    def block(self) -> None:
        self.simulator.unregistered.add(self.place.chat)


@pytest.fixture
async def platform() -> AsyncIterator[SignalPlatform]:
    """An account that is connected to a simulated daemon."""
    http = PlainHttpCaller()
    with SignalSimulator() as simulator:
        platform = SignalPlatform(simulator, http)
        yield platform
        await platform.channel.close()
        await http.close()


class TestSignal(ChannelContract): ...


async def _receive_until(channel: SignalChannel, inbox: CollectingInbox, count: int) -> None:
    receiving = asyncio.ensure_future(channel.receive(inbox))
    while len(inbox.messages) < count:
        await inbox.wait()
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)


async def test_nothing_is_lost_with_an_older_daemon_while_the_store_is_away() -> None:
    http = PlainHttpCaller()
    with SignalSimulator(is_numbered=False) as simulator:
        channel = SignalChannel(_settings(simulator.url), http)
        inbox = CollectingInbox(failures=2)
        simulator.say("one")
        simulator.say("two")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                async with asyncio.timeout(20):
                    await channel.receive(inbox)
        await _receive_until(channel, inbox, 2)
        assert [message.text for message in inbox.messages] == ["one", "two"]
        assert len(simulator.resumed_behind) == 1, "the stream stayed open"
        await http.close()


async def test_a_new_process_is_sent_what_a_killed_one_did_not_handle(
    platform: SignalPlatform,
) -> None:
    simulator = platform.simulator
    simulator.say("written while it died")
    with pytest.raises(StoreUnavailable):
        await platform.channel.receive(CollectingInbox(failures=1))
    successor = SignalChannel(_settings(simulator.url), platform.http)
    inbox = CollectingInbox()
    await _receive_until(successor, inbox, 1)
    assert inbox.messages[0].text == "written while it died"


async def test_a_daemon_that_was_away_is_asked_for_all_events_that_it_has(
    platform: SignalPlatform,
) -> None:
    simulator, inbox = platform.simulator, CollectingInbox()
    simulator.say("before")
    await _receive_until(platform.channel, inbox, 1)
    simulator.down()
    with pytest.raises(DeliveryDelayed):
        await platform.channel.receive(inbox)
    # It counts from one again: what it wrote to a stream that broke is behind no earlier number.
    simulator.say("while it was away")
    simulator.up()
    await _receive_until(platform.channel, inbox, 2)
    assert simulator.resumed_behind[-1] == "0"
    assert [message.text for message in inbox.messages] == ["before", "while it was away"]


async def test_an_event_that_cannot_be_read_is_recorded_and_holds_up_nothing(
    platform: SignalPlatform,
) -> None:
    inbox = CollectingInbox()
    platform.simulator.say("odd", timestamp="soon")
    platform.simulator.say("next")
    await _receive_until(platform.channel, inbox, 1)
    assert [message.text for message in inbox.messages] == ["next"]
    assert [one.rpartition(":")[0] for one in inbox.rejected] == [f"{ACCOUNT}:event"]


async def test_styles_quotes_and_files_reach_the_daemon(platform: SignalPlatform) -> None:
    channel, simulator = platform.channel, platform.simulator
    await channel.send(ChatPlace(GROUP), "😀 **bold** `code`", reply_to="17:uuid", plain=False)
    sent = simulator.sent[-1]
    assert (sent.chat, sent.text, sent.quote) == (GROUP, "😀 bold code", 17)
    assert sent.styles == ["3:4:BOLD", "8:4:MONOSPACE"]
    simulator.files["a1"] = b"content"
    file = Attachment(reference=f"{user_uuid(7)}|a1", kind="file", size=7)
    assert await channel.download(file, 100) == b"content"
    with pytest.raises(DeliveryRefused):
        await channel.download(file, 3)
    # What a sender says about the size of a file may be wrong.
    simulator.files["a2"] = b"x" * 100_000
    small = Attachment(reference=f"{user_uuid(7)}|a2", kind="file", size=1)
    for most in (50_000, 99_999):
        with pytest.raises(DeliveryRefused, match="bytes"):
            await channel.download(small, most)
    assert await channel.download(small, 100_000) == b"x" * 100_000
    lost = Attachment(reference=f"{user_uuid(7)}|", kind="file")
    with pytest.raises(DeliveryRefused):
        await channel.download(lost, 100)
    assert await channel.check() == ACCOUNT


async def test_failures_say_whether_they_concern_the_message(platform: SignalPlatform) -> None:
    channel, simulator = platform.channel, platform.simulator
    place = platform.place
    simulator.fail_next("send", error=-5)
    with pytest.raises(DeliveryDelayed) as limited:
        await channel.send(place, "x", plain=True)
    assert limited.value.retry_after == 60.0
    proof = {"type": "RATE_LIMIT_FAILURE", "token": "t-1", "retryAfterSeconds": 86400}
    data = {"response": {"timestamp": 1, "results": [proof]}}
    for code in (-5, -1):
        simulator.fail_next("send", error=code, data=data)
        with pytest.raises(DeliveryDelayed, match=r"captcha.*--challenge t-1") as challenged:
            await channel.send(place, "x", plain=True)
        assert challenged.value.retry_after == 900.0, "it may be solved at any time"
    simulator.fail_next("send", error=-3)
    with pytest.raises(DeliveryDelayed) as cut:
        await channel.send(place, "x", plain=True)
    assert cut.value.is_uncertain
    simulator.fail_next("send", error=-4)
    with pytest.raises(DeliveryImpossible, match="safety number"):
        await channel.send(place, "x", plain=True)
    with pytest.raises(DeliveryRefused):
        await channel.send(ChatPlace("nobody"), "x", plain=True)
    other = SignalChannel(_settings(simulator.url, account="+1"), platform.http)
    for call in (other.send(place, "x", plain=True), other.check()):
        with pytest.raises(DeliveryDelayed):
            await call
    with pytest.raises(DeliveryDelayed, match=r"account \+1"):
        await other.receive(CollectingInbox())


def _message(data: dict[str, Any], **more: Any) -> InboundMessage | None:
    source = {"sourceUuid": "u-7", "sourceNumber": "+497", "sourceName": "Ada"}
    envelope = {**source, "dataMessage": {"timestamp": 5, **data}, **more}
    read = read_event(json.dumps({"envelope": envelope, "account": ACCOUNT}).encode())
    assert read is not None
    return read_message(read, ACCOUNT)


def test_a_person_is_known_by_the_uuid_and_may_be_named_by_the_number() -> None:
    message = _message({"message": "hi"})
    assert message is not None
    assert (message.unique_id, message.sender, message.aliases) == ("u-7:5", "u-7", ("+497",))
    settings = _settings(direct="allow", allow=("+497",))
    assert judge(settings, message, ()) == "allow"
    assert judge(_settings(), message, ()) == "pair"
    assert session_key(settings, {}, message) == "agent:main:signal:direct:u-7"
    people = {"ada": ("signal:+497",)}
    assert session_key(settings, people, message) == "agent:main:signal:direct:ada"


def test_a_message_that_disappears_is_one_like_any_other_and_a_new_timer_is_none() -> None:
    plain = _message({"message": "hi"})
    assert plain is not None
    timed = {"expiresInSeconds": 30, "isExpirationUpdate": False, "viewOnce": True}
    assert _message({"message": "hi", **timed}) == plain
    changed = {"message": None, "expiresInSeconds": 30, "isExpirationUpdate": True}
    assert _message(changed) is None


def test_mentions_and_replies_address_us_in_groups() -> None:
    group = {"groupInfo": {"groupId": GROUP, "type": "DELIVER"}}
    plain = _message({"message": "hi", **group})
    assert plain is not None
    assert (plain.is_direct, plain.is_mention) == (False, False)
    mention = {"number": ACCOUNT, "uuid": "u-0", "name": "Bot", "start": 0, "length": 1}
    named = _message({"message": "\ufffc what is new?", "mentions": [mention], **group})
    assert named is not None
    assert (named.text, named.is_mention) == ("what is new?", True)
    quote = {"id": 3, "authorNumber": ACCOUNT, "text": "Shall I?"}
    reply = _message({"message": "yes", "quote": quote, **group})
    assert reply is not None
    assert (reply.is_mention, reply.reply_to, reply.quote) == (True, "3", "Shall I?")
    assert session_key(_settings(), {}, reply) == f"agent:main:signal:group:{GROUP}"


def test_empty_fields_take_nothing_from_a_message() -> None:
    file = {"contentType": None, "filename": None, "id": None, "size": None, "width": None}
    mention = {"name": None, "number": None, "uuid": "u-8", "start": 0, "length": 1}
    message = _message({"message": "\ufffc hi", "mentions": [mention], "attachments": [file]})
    assert message is not None
    assert (message.text, len(message.attachments)) == ("@u-8 hi", 1)
    message = _message({"message": "hi", "mentions": None, "attachments": None, "quote": None})
    assert message is not None
    assert message.text == "hi"


def test_a_quote_names_who_was_mentioned_and_a_long_text_is_a_named_file() -> None:
    mention = {"name": "Bob", "number": None, "uuid": "u-8", "start": 4, "length": 1}
    quote = {"id": 3, "authorUuid": "u-9", "text": "ask \ufffc!", "mentions": [mention]}
    whole = {"contentType": "text/x-signal-plain", "filename": None, "id": "a1", "size": 5000}
    message = _message({"message": "so?", "quote": quote, "attachments": [whole]})
    assert message is not None
    assert message.quote == "ask @Bob!"
    assert [one.name for one in message.attachments] == ["whole message.txt"]


def test_what_nobody_wrote_to_us_is_no_message() -> None:
    assert _message({"message": None, "reaction": {"emoji": "x"}}) is None
    for event in (b"{}", b'{"envelope":{"syncMessage":{}}}'):
        read = read_event(event)
        assert read is None or read_message(read, ACCOUNT) is None
    with pytest.raises(msgspec.DecodeError):
        read_event(b"not json")
    own = _message({"message": "hi"}, sourceNumber=ACCOUNT)
    assert own is not None
    assert own.is_own


def test_formatting_becomes_ranges_and_marks_of_the_source_do_not() -> None:
    assert to_signal("# Title\n\n> a\n> b\n\n[text](https://x.example)") == (
        "Title\n\n> a\n> b\n\ntext (https://x.example)", ["0:5:BOLD"],
    )  # fmt: skip
    assert to_signal("\ue100forged\ue200") == ("forged", [])


def test_a_signal_channel_needs_an_account_and_has_no_webhook() -> None:
    with pytest.raises(InvalidSetting, match="account"):
        _settings(account="").filled({}, is_required=True)
    with pytest.raises(InvalidSetting, match="webhook"):
        _settings(receive="webhook")
