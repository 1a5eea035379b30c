"""People talk to an agent over Signal, through a signal-cli daemon."""

from pathlib import Path

from holdfast.simulator.platforms.signal import ACCOUNT, GROUP, user_uuid
from tests.acceptance.channel_stories import QUICK, signal_story
from tests.acceptance.stories import HttpUser
from tests.acceptance.test_telegram import until_sent
from tests.store_urls import sqlite_url


def test_people_are_answered_once_strangers_not_and_a_killed_gateway_loses_nothing(
    tmp_path: Path,
) -> None:
    more = 'collect_seconds = 0\nallow = ["+490000007"]'
    story = signal_story(sqlite_url(tmp_path), tmp_path, more, QUICK)
    with story as (signal, provider, gateway):
        user = HttpUser(gateway)
        signal.say("a stranger in a group of their own", user=9, group=GROUP)
        signal.say("a stranger", user=9)
        signal.wait_for_text("approve the code", user_uuid(9))
        signal.write_from_phone("my own words")
        signal.say("hello **you**")
        signal.wait_for_text("Messages seen: 1", user_uuid(7))
        key = f"agent:main:signal:direct:{user_uuid(7)}"
        assert [one["key"] for one in user.get("/v1/sessions")["data"]] == [key]
        until_sent(gateway, 2)
        gateway.kill()
        signal.say("while it was dead")
        signal.deliver_again()
        gateway.start()
        signal.wait_for_text("Messages seen: 3", user_uuid(7))
        signal.say("/status")
        signal.wait_for_text("generation 1", user_uuid(7))
        mention = [{"number": ACCOUNT, "start": 0, "length": 1}]
        signal.say("\ufffc in the group", group=GROUP, mentions=mention)
        signal.wait_for_text("Messages seen: 1", GROUP)
        assert len(provider.requests()) == 3
        assert len(signal.texts(user_uuid(7))) == 3
