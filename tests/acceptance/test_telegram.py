"""People talk to an agent over Telegram: each message is answered once, in order."""

from pathlib import Path

import httpx

from holdfast.cli.client.gateway_client import GatewayClient
from holdfast.cli.commands.status import collect_status
from holdfast.settings.target import GatewayTarget
from tests.acceptance.channel_stories import QUICK, telegram_story
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import HttpUser

IDLE = '[sessions.reset]\nmode = "idle"\nidle_minutes = 0.000001\n'
KEY = "agent:main:telegram:direct:7"


def test_the_yes_after_an_idle_night_meets_the_same_conversation(
    store_url: str, tmp_path: Path
) -> None:
    """The whole of story 2: idle, restarted overnight, a native reply, a provider that forgets."""
    with telegram_story(store_url, tmp_path, rest=IDLE) as (telegram, provider, gateway):
        user = HttpUser(gateway)
        said = ["I am Ada and plan a trip", "shall I book the flight?", "yes", "and the hotel?"]
        for number, text in enumerate(said[:2]):
            telegram.say(text)
            telegram.wait_for_text(f"Messages seen: {2 * number + 1}")
        first = user.session(KEY)
        until_sent(gateway, 2)
        gateway.stop()
        question = telegram.sent[-1]
        replied = {
            "message_id": question.message_id, "date": 1, "text": question.text,
            "chat": {"id": 7, "type": "private"}, "from": {"id": 42, "is_bot": True},
        }  # fmt: skip
        telegram.say("yes", reply_to_message=replied)
        gateway.start()
        telegram.wait_for_text("Messages seen: 5. Last text: yes")
        assert provider.requests()[-1].body["previous_response_id"], "the provider's memory stays"
        assert "not the sender's own words" not in str(provider.requests()[-1].body["input"])
        provider.add_fault("R02", times=1)
        telegram.say("and the hotel?")
        telegram.wait_for_text("Messages seen: 7. Last text: and the hotel?")
        second = user.session(KEY)
        assert (second["id"], second["generation"]) == (first["id"], 1)
        items = user.get(f"/v1/sessions/{second['id']}/items?order=asc&limit=100")["data"]
        texts = [str(item["content"]) for item in items if item.get("role") == "user"]
        assert len(texts) == len(said)
        assert all(text in shown for text, shown in zip(said, texts, strict=True))
        assert len(telegram.sent) == len(said), "each answered once"


def until_sent(gateway: GatewayProcess, count: int) -> None:
    """Wait until the outbox knows that so many messages arrived."""
    while len(HttpUser(gateway).get("/v1/outbox?state=sent")["data"]) < count:
        pass


def test_messages_that_wait_while_the_gateway_is_killed_are_answered_once(
    store_url: str, tmp_path: Path
) -> None:
    with telegram_story(store_url, tmp_path, rest=QUICK) as (telegram, provider, gateway):
        telegram.say("one")
        telegram.wait_for_text("Messages seen: 1")
        until_sent(gateway, 1)
        gateway.kill()
        telegram.say("two")
        telegram.say("three", user=8)
        gateway.start()
        telegram.wait_for_text("Messages seen: 3", chat=7)
        telegram.wait_for_text("Messages seen: 1", chat=8)
        telegram.deliver_again(3)
        telegram.say("four", user=8)
        telegram.wait_for_text("Messages seen: 3", chat=8)
        assert len(telegram.texts(7)) == 2
        assert len(telegram.texts(8)) == 2
        assert len(provider.requests()) == 4


def test_a_send_with_an_unknown_outcome_is_repeated_with_a_note(
    store_url: str, tmp_path: Path
) -> None:
    more = 'direct = "open"\ncollect_seconds = 0\nreply = "whole"'
    with telegram_story(store_url, tmp_path, more=more) as (telegram, _, gateway):
        telegram.fail_next("sendMessage", after=True)
        telegram.say("hello")
        until_sent(gateway, 1)
        assert telegram.texts() == ["Messages seen: 1. Last text: hello"] * 2
        (row,) = HttpUser(gateway).get("/v1/outbox")["data"]
        assert row["is_maybe_duplicate"]


def test_a_live_reply_whose_first_send_is_uncertain_sends_no_second_and_says_so(
    store_url: str, tmp_path: Path
) -> None:
    with telegram_story(store_url, tmp_path) as (telegram, provider, gateway):
        telegram.fail_next("sendMessage", after=True)
        with provider.hold(at="event", event=7):
            telegram.say("hello")
            telegram.wait_for_text("…")
        until_sent(gateway, 1)
        partial, whole = telegram.texts()
        assert partial.endswith("…")
        assert whole == "Messages seen: 1. Last text: hello"
        (row,) = HttpUser(gateway).get("/v1/outbox")["data"]
        assert row["is_maybe_duplicate"]


def test_a_platform_that_is_away_delays_and_loses_nothing(store_url: str, tmp_path: Path) -> None:
    with telegram_story(store_url, tmp_path) as (telegram, _, gateway):
        telegram.fail_next("sendMessage", 3, code=502, description="Bad Gateway")
        telegram.say("hello")
        telegram.wait_for_text("Messages seen: 1")
        telegram.fail_next("sendMessage", 1, code=429, description="Too Many", retry_after=1)
        telegram.say("again")
        telegram.wait_for_text("Messages seen: 3")
        assert len(telegram.sent) == 2
        until_sent(gateway, 2)
        listed = HttpUser(gateway).get("/v1/outbox?state=sent")["data"]
        assert [row["refusals"] for row in listed] == [0, 0]


def code_of(reply: httpx.Response) -> str:
    """Return the code of an error."""
    code: str = reply.json()["error"]["code"]
    return code


def test_strangers_cost_nothing_until_they_are_approved(store_url: str, tmp_path: Path) -> None:
    with telegram_story(store_url, tmp_path, more="collect_seconds = 0") as story:
        telegram, provider, gateway = story
        user = HttpUser(gateway)
        telegram.say("secret words")
        telegram.wait_for_text("approve the code")
        telegram.say("in a group of mine", chat=-100, user=7)
        telegram.say("more secrets")
        telegram.wait(lambda: len(telegram.confirmed) == 3)
        assert user.get("/v1/sessions")["data"] == []
        (pairing,) = user.get("/v1/channels/support/pairings")["data"]
        assert (pairing["sender"], pairing["approved_at"]) == ("7", None)
        for wrong in ("support/pairings/AAAAAAAA", "support/pairings/a%00b"):
            reply = user.post(f"/v1/channels/{wrong}/approve")
            assert (reply.status_code, code_of(reply)) == (404, "pairing_not_found")
        for wrong in ("other/pairings/AAAAAAAA/approve", "other/messages", "other/check"):
            body = {"to": "7", "text": "x"} if wrong == "other/messages" else {}
            reply = user.post(f"/v1/channels/{wrong}", body)
            assert (reply.status_code, code_of(reply)) == (404, "channel_not_found")
        for wrong in ("out_1", "a%00b"):
            reply = user.post(f"/v1/outbox/{wrong}/retry")
            assert (reply.status_code, code_of(reply)) == (404, "message_not_found")
        reply = httpx.get(f"{gateway.url}/v1/outbox?after=out_1")
        assert (reply.status_code, code_of(reply)) == (400, "unknown_cursor")
        reply = httpx.delete(f"{gateway.url}/v1/channels/support/pairings/8")
        assert reply.json()["deleted"] is False
        path = f"/v1/channels/support/pairings/{pairing['code']}/approve"
        assert user.post(path).status_code == 200
        telegram.say("now")
        telegram.wait_for_text("Messages seen: 1")
        assert len(telegram.texts()) == 2, "the code was told once"
        assert len(provider.requests()) == 1


def test_commands_act_once_and_groups_are_addressed(store_url: str, tmp_path: Path) -> None:
    more = 'allow = ["7"]\ncollect_seconds = 0'
    with telegram_story(store_url, tmp_path, more=more) as (telegram, provider, gateway):
        user = HttpUser(gateway)
        telegram.say("remember me")
        telegram.wait_for_text("Messages seen: 1")
        telegram.say("/new and this is new")
        telegram.wait(lambda: len(telegram.texts(7)) == 2)
        telegram.deliver_again(1)
        telegram.say("/status")
        telegram.wait_for_text("generation 2")
        assert user.session(KEY)["generation"] == 2
        assert len(provider.requests()) == 2
        telegram.say("not for us", chat=-5)
        mention = [{"type": "mention", "offset": 0, "length": 8}]
        telegram.say("@testbot hello", chat=-5, entities=mention)
        telegram.wait_for_text("Messages seen: 1", chat=-5)
        telegram.migrate(-5, -1005)
        telegram.say("@testbot again", chat=-1005, entities=mention)
        telegram.wait_for_text("Messages seen: 3", chat=-1005)
        shown = provider.requests()[-1].body["input"]
        assert "[User7] again" in str(shown)


def test_an_operator_sends_and_a_blocked_bot_is_a_dead_letter(
    store_url: str, tmp_path: Path
) -> None:
    with telegram_story(store_url, tmp_path) as (telegram, _, gateway):
        user = HttpUser(gateway)
        telegram.blocked.add(7)
        once = {"Idempotency-Key": "once"}
        body = {"to": "7", "text": "**hi** there"}
        for _ in range(2):
            url = f"{gateway.url}/v1/channels/support/messages"
            assert httpx.post(url, json=body, headers=once).status_code == 202
        telegram.wait(lambda: any(call[0] == "sendMessage" for call in telegram.calls))
        dead: list[dict[str, str]] = []
        while not dead:
            dead = user.get("/v1/outbox?state=dead")["data"]
        found = {finding["code"]: finding["detail"] for finding in user.get("/v1/doctor")["data"]}
        assert found["outbox_dead"] == "support: 1 messages were given up"
        (listed,) = collect_status(GatewayClient(GatewayTarget(url=gateway.url)))["channels"]
        assert (listed["name"], listed["outbox"]) == ("support", {"dead": 1})
        telegram.blocked.clear()
        assert user.post(f"/v1/outbox/{dead[0]['id']}/retry").status_code == 200
        telegram.wait_for_text("hi there")
        assert telegram.sent[-1].texts == ["<b>hi</b> there"]
        assert len(telegram.sent) == 1
        telegram.say("hello")
        telegram.wait_for_text("Messages seen: 1")
        until_sent(gateway, 2)
        metrics = httpx.get(f"{gateway.url}/metrics").text
        for line in (
            'holdfast_channel_sends_total{channel="support",outcome="impossible"} 1.0',
            'holdfast_channel_messages_total{channel="support",outcome="accepted"} 1.0',
            'holdfast_inbox_lag_seconds_count{channel="support"} 1.0',
        ):
            assert line in metrics


def test_a_webhook_is_answered_after_the_commit_and_needs_its_secret(
    store_url: str, tmp_path: Path
) -> None:
    more = (
        'direct = "open"\ncollect_seconds = 0\nreceive = "webhook"\n'
        'signing_secret_env = "WEBHOOK_SECRET"'
    )
    with telegram_story(store_url, tmp_path, more=more) as (telegram, provider, gateway):
        chat, sender = {"id": 7, "type": "private"}, {"id": 7, "is_bot": False}
        message = {"message_id": 1, "chat": chat, "from": sender, "text": "hi"}
        url = f"{gateway.url}/v1/channels/support/webhook"
        update = {"update_id": 1, "message": message}
        assert httpx.post(url, json=update).status_code == 401
        assert HttpUser(gateway).get("/v1/sessions")["data"] == []
        secret = {"X-Telegram-Bot-Api-Secret-Token": "hush"}
        for _ in range(3):
            assert httpx.post(url, json=update, headers=secret).status_code == 200
        telegram.wait_for_text("Messages seen: 1")
        assert len(provider.requests()) == 1
