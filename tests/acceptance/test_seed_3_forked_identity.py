"""Story 3: two requests with one new key minted two sessions, and the second had no memory.

One key is one session and one transcript, in every process; the second runs after the first.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import HttpUser, answer_text, gateway_before

CALLERS = 20


def test_first_contacts_in_two_processes_are_one_conversation(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator() as sim,
        gateway_before(sim, store_url, tmp_path) as one,
        gateway_before(sim, store_url, tmp_path) as other,
    ):
        tellers = [HttpUser(one), HttpUser(other)]
        with (
            sim.hold(when={"text": "hello"}, at="arrival") as barrier,
            ThreadPoolExecutor(CALLERS) as pool,
        ):
            calls = [pool.submit(tellers[n % 2].say, "new", f"hello {n}") for n in range(CALLERS)]
            barrier.wait_held(1)
            assert barrier.held == 1, "one run at a time, over both processes"
            barrier.remove()
            replies = [call.result() for call in calls]
        assert {reply.headers["x-session-id"] for reply in replies} == {
            replies[0].headers["x-session-id"]
        }
        seen = sorted(int(answer_text(reply).split()[2].rstrip(".")) for reply in replies)
        assert seen == [2 * n + 1 for n in range(CALLERS)], "each saw everything before it"
        session = tellers[0].session("new")
        assert (session["turn_count"], session["item_count"]) == (CALLERS, 2 * CALLERS)
        assert len(tellers[1].get("/v1/sessions")["data"]) == 1


def test_an_internal_hand_off_and_an_explicit_id_pass_by(store_url: str, tmp_path: Path) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path) as gateway:
        user = HttpUser(gateway)
        first = user.say("k", "hello")
        hidden = user.say("k", "inside", headers={"X-Session-Internal": "true"})
        assert "Messages seen: 3" in answer_text(hidden)
        assert user.session("k")["turn_count"] == 1
        assert len(user.get("/v1/sessions")["data"]) == 1
        again = user.say("k", "again")
        assert again.headers["x-session-id"] == first.headers["x-session-id"]
        assert "Messages seen: 3" in answer_text(again)
