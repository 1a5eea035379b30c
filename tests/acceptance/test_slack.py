"""People talk to an agent over Slack: each message is answered once, in its thread."""

from pathlib import Path

from tests.acceptance.channel_stories import OPEN, QUICK, channel_gateway, slack_story
from tests.acceptance.stories import HttpUser
from tests.acceptance.test_telegram import until_sent
from tests.store_urls import sqlite_url


def test_a_mention_opens_a_thread_that_needs_no_more_mentions(tmp_path: Path) -> None:
    with slack_story(sqlite_url(tmp_path), tmp_path) as (slack, provider, gateway):
        slack.say("nothing for us", channel="C1")
        ts = slack.say("<@UBOT> hello", channel="C1")
        slack.wait_for_text("Messages seen: 1")
        slack.say("and again", channel="C1", thread=ts)
        slack.wait_for_text("Messages seen: 3")
        slack.say("somebody else's thread", channel="C1", thread="1.5")
        slack.say("direct")
        slack.wait_for_text("Messages seen: 1", chat="D7")
        assert [one.thread for one in slack.posted] == [ts, ts, None]
        session = HttpUser(gateway).session(f"agent:main:slack:channel:C1:thread:{ts}")
        assert session["turn_count"] == 2
        assert HttpUser(gateway).session("agent:main:slack:direct:U7")["turn_count"] == 1
        assert "[User7] and again" in str(provider.requests()[1].body["input"])
        slack.deliver_again(8)
        slack.wait(lambda: slack.unacknowledged == 0)
        assert len(provider.requests()) == 3, "no event caused a turn twice"


def test_events_that_nobody_acknowledged_are_answered_once_after_a_kill(
    store_url: str, tmp_path: Path
) -> None:
    with slack_story(store_url, tmp_path, rest=QUICK) as (slack, provider, gateway):
        slack.say("one")
        slack.wait_for_text("Messages seen: 1")
        until_sent(gateway, 1)
        gateway.kill()
        slack.say("two")
        slack.say("three", user="U8")
        gateway.start()
        slack.wait_for_text("Messages seen: 3", chat="D7")
        slack.wait_for_text("Messages seen: 1", chat="D8")
        slack.deliver_again(5)
        slack.wait(lambda: slack.unacknowledged == 0)
        assert len(slack.posted) == len(provider.requests()) == 3


def test_two_gateways_share_the_events_of_one_app(tmp_path: Path) -> None:
    store_url = sqlite_url(tmp_path)
    with slack_story(store_url, tmp_path) as (slack, provider, _):
        slack.wait(lambda: slack.connections == 1)
        with channel_gateway(store_url, tmp_path / "holdfast.toml"):
            slack.wait(lambda: slack.connections == 2)
            for number in range(4):
                slack.say(f"<@UBOT> question {number}", channel="C1")
            slack.wait(lambda: len(slack.posted) == 4)
            slack.wait(lambda: slack.unacknowledged == 0)
            assert len(provider.requests()) == 4, "message and app_mention are one turn"


def test_a_workspace_that_limits_and_fails_delays_and_loses_nothing(tmp_path: Path) -> None:
    more = OPEN + '\nreply = "whole"'
    with slack_story(sqlite_url(tmp_path), tmp_path, more) as (slack, _, gateway):
        slack.fail_next("chat.postMessage", error="ratelimited", retry_after=1)
        slack.fail_next("chat.postMessage", error="internal_error", status=500)
        slack.say("hello")
        slack.wait_for_text("Messages seen: 1")
        until_sent(gateway, 1)
        (row,) = HttpUser(gateway).get("/v1/outbox")["data"]
        assert (row["refusals"], row["is_maybe_duplicate"]) == (0, True)
        slack.blocked.add("D7")
        slack.say("are you there?")
        dead: list[dict[str, str]] = []
        while not dead:
            dead = HttpUser(gateway).get("/v1/outbox?state=dead")["data"]
        slack.blocked.clear()
        assert HttpUser(gateway).post(f"/v1/outbox/{dead[0]['id']}/retry").status_code == 200
        slack.wait_for_text("Messages seen: 3")


def test_strangers_are_paired_and_commands_act_once(tmp_path: Path) -> None:
    story = slack_story(sqlite_url(tmp_path), tmp_path, "collect_seconds = 0")
    with story as (slack, provider, gateway):
        user = HttpUser(gateway)
        slack.say("secret words")
        slack.say("<@UBOT> in a channel of mine", channel="C9")
        slack.wait_for_text("approve the code")
        assert user.get("/v1/sessions")["data"] == []
        (pairing,) = user.get("/v1/channels/work/pairings")["data"]
        assert (pairing["sender"], pairing["name"]) == ("U7", "User7")
        user.post(f"/v1/channels/work/pairings/{pairing['code']}/approve")
        ts = slack.say("<@UBOT> now", channel="C9")
        slack.wait_for_text("Messages seen: 1", chat="C9")
        slack.say("!new and this is new", channel="C9", thread=ts)
        slack.wait(lambda: len(slack.texts("C9")) == 2)
        slack.deliver_again(1)
        slack.say("<@UBOT> status", channel="C9", thread=ts)
        slack.wait_for_text("generation 2")
        assert len(provider.requests()) == 2
        slack.say("a stranger's words", user="U9", channel="C9", thread=ts)
        slack.wait(lambda: slack.unacknowledged == 0)
        assert len(provider.requests()) == 2
