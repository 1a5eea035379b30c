"""Story 4: a late event of the run before a reset was written onto the fresh session.

After a reset the new session is idle and empty until a new turn starts, whatever comes late.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.channel_stories import slack_story
from tests.acceptance.stories import HttpUser, answer_text, gateway_before


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ending", ["answer", "error"])
def test_a_late_end_changes_nothing_but_its_own_run(
    store_url: str, tmp_path: Path, ending: str, stream: bool
) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path) as gateway:
        user = HttpUser(gateway)
        if ending == "error":
            sim.add_fault("error", status=500, when={"text": "slow"})
        with (
            sim.hold(when={"text": "slow"}, at="arrival") as barrier,
            ThreadPoolExecutor(2) as pool,
        ):
            late = pool.submit(user.say, "k", "slow question", stream=stream)
            barrier.wait_held(1)
            old = user.session("k")
            assert (old["status"], old["active_turn_id"] is not None) == ("running", True)
            fresh = user.post(f"/v1/sessions/{old['id']}/reset").json()
            barrier.release()
            reply = late.result()
        if stream:
            assert "event: response.incomplete" in reply.text
        else:
            assert reply.status_code == 409
            assert reply.json()["error"]["code"] == "turn_cancelled"
            assert reply.headers["x-should-retry"] == "false"
        now = user.session("k")
        assert now["id"] == fresh["id"] != old["id"]
        assert (now["status"], now["active_turn_id"], now["queued_turns"]) == ("idle", None, 0)
        assert (now["last_turn"], now["last_user_activity_at"]) == (None, None)
        assert (now["item_count"], now["usage"]["total_tokens"]) == (0, 0)
        assert "Messages seen: 1" in answer_text(user.say("k", "hello"))
        before = user.get(f"/v1/sessions/{old['id']}")
        assert before["status"] == "retired"
        assert before["last_turn"]["status"] == "cancelled"


def test_a_reset_with_the_wrong_expectation_does_nothing(store_url: str, tmp_path: Path) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path) as gateway:
        user = HttpUser(gateway)
        answer_text(user.say("k", "hello"))
        live = user.session("k")["id"]
        wrong = user.post(
            f"/v1/sessions/{live}/reset", {"expected_session_id": "ses_somebody_else"}
        )
        assert wrong.status_code == 409
        assert wrong.json()["error"]["code"] == "session_changed"
        assert live in wrong.json()["error"]["message"]
        assert user.session("k")["id"] == live


@pytest.mark.parametrize("asked_in", ["chat", "api"])
def test_a_slack_thread_goes_on_answering_after_an_overflow_and_a_reset(
    store_url: str, tmp_path: Path, asked_in: str
) -> None:
    with slack_story(store_url, tmp_path) as (slack, provider, gateway):
        user = HttpUser(gateway)
        thread = slack.say("<@UBOT> hello", channel="C1")
        key = f"agent:main:slack:channel:C1:thread:{thread}"
        slack.wait_for_text("Messages seen: 1")
        provider.add_fault("overflow", when={"text": "enormous"})
        with provider.hold(when={"text": "enormous"}, at="arrival") as barrier:
            slack.say("an enormous question", channel="C1", thread=thread)
            barrier.wait_held(1)
            slack.say("and one behind it", channel="C1", thread=thread)
            slack.wait(lambda: slack.unacknowledged == 0)
            old = user.session(key)
            assert (old["status"], old["queued_turns"]) == ("running", 1)
            if asked_in == "chat":
                slack.say("!reset", channel="C1", thread=thread)
                slack.wait_for_text("A new conversation has begun.")
            else:
                assert user.post(f"/v1/sessions/{old['id']}/reset").status_code == 200
            fresh = user.session(key)
            barrier.release()
        assert_untouched(user, key, fresh["id"])
        slack.say("are you there?", channel="C1", thread=thread)
        slack.wait_for_text("Last text: [User7] are you there?")
        assert "Messages seen: 1" in slack.texts("C1")[-1]
        after = user.session(key)
        assert (after["id"], after["generation"], after["turn_count"]) == (fresh["id"], 2, 1)
        turns = user.get(f"/v1/sessions/{old['id']}/turns")["data"]
        assert sorted(turn["status"] for turn in turns) == ["cancelled", "cancelled", "completed"]
        assert not any("could not be answered" in text for text in slack.texts())


def assert_untouched(user: HttpUser, key: str, session_id: str) -> None:
    """Check that nothing late was written onto a fresh session."""
    now = user.session(key)
    assert now["id"] == session_id
    assert (now["status"], now["active_turn_id"], now["queued_turns"]) == ("idle", None, 0)
    assert (now["last_turn"], now["item_count"], now["turn_count"]) == (None, 0, 0)
