"""Story 4: a late event of the run before a reset was written onto the fresh session.

After a reset the new session is idle and empty until a new turn starts, whatever comes late.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import HttpUser, answer_text, gateway_before, store_url

__all__ = ["store_url"]


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
