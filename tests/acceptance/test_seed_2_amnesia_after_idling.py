"""Story 2: after an idle hour the same key came back as a stranger.

Idling ends the runtime, not the history: same id, same transcript, same provider state.
"""

from pathlib import Path

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import HttpUser, answer_text, gateway_before

ALWAYS_IDLE = '[sessions.reset]\nmode = "idle"\nidle_minutes = 0.000001'
ALWAYS_IDLE_HARD = ALWAYS_IDLE + '\nrollover = "hard"'


def test_the_yes_after_the_pause_meets_the_same_conversation(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator() as sim,
        gateway_before(
            sim, store_url, tmp_path, upstream='state = "chain"', more=ALWAYS_IDLE
        ) as gateway,
    ):
        user = HttpUser(gateway)
        first = user.say("chat", "shall I book the flight?")
        second = user.say("chat", "yes")
        assert "Messages seen: 3" in answer_text(second)
        assert second.headers["x-session-id"] == first.headers["x-session-id"]
        assert second.headers["x-session-generation"] == "1"
        assert sim.requests()[-1].body["previous_response_id"], "the provider's memory stays too"


def test_a_hard_rollover_happens_only_where_it_is_asked_for_and_can_be_undone(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator() as sim,
        gateway_before(sim, store_url, tmp_path, more=ALWAYS_IDLE_HARD) as gateway,
    ):
        user = HttpUser(gateway)
        first = user.say("chat", "shall I book the flight?")
        second = user.say("chat", "yes")
        assert "Messages seen: 1" in answer_text(second)
        assert second.headers["x-session-generation"] == "2"
        old = first.headers["x-session-id"]
        listed = user.get("/v1/sessions?key=chat&generations=true")["data"]
        assert old in [session["id"] for session in listed]
        assert user.post(f"/v1/sessions/{old}/restore").status_code == 200
        assert user.session("chat")["id"] == old
