"""What was learnt about a provider survives a restart, on both databases."""

import time
from pathlib import Path
from typing import Any

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import MODEL, HttpUser, answer_text, gateway_before

Json = dict[str, Any]


def _picture() -> list[Json]:
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": "https://pictures.example/gone.png"},
    ]
    return [{"role": "user", "content": parts}]


def _heals(user: HttpUser, key: str) -> list[Json]:
    """Return what was healed in a key's session."""
    session = user.session(key)
    turns = user.get(f"/v1/sessions/{session['id']}/turns?order=asc")["data"]
    told = [user.get(f"/v1/turns/{turn['id']}") for turn in turns]
    return [heal for turn in told for run in turn["runs"] for heal in run["heals"] or ()]


def test_an_item_that_was_set_aside_stays_so(store_url: str, tmp_path: Path) -> None:
    with ProviderSimulator() as sim:
        sim.add_fault(
            "error", status=400, message="Could not process image", when={"text": "gone.png"}
        )
        fallback = f'name = "one"\nmodels = ["{MODEL}"]\nfallback = ["gpt-4o"]\n'
        other = f'[[upstream]]\nname = "two"\nurl = "{sim.base_url}"\nkey_env = "STORY_KEY"\n'
        how: Json = {"upstream": fallback + other, "more": "[heals]\nfirst_pause_seconds = 0.01\n"}
        with gateway_before(sim, store_url, tmp_path, **how) as gateway:
            user = HttpUser(gateway)
            assert answer_text(user.say("k", "", input=_picture())).startswith("Messages seen: 1")
            sim.add_fault("quota", when={"model": MODEL}, times=1)
            assert user.say("k", "two").json()["model"] == "gpt-4o"
        sim.clear_record()
        with gateway_before(sim, store_url, tmp_path, **how) as gateway:
            user = HttpUser(gateway)
            assert answer_text(user.say("k", "three")).startswith("Messages seen: 5.")
            assert len(sim.requests()) == 1
            healed = _heals(user, "k")
            assert [heal["action"] for heal in healed] == ["quarantined", "fell_back"]
            assert healed[0]["message"] == "Could not process image"
            assert (healed[1]["upstream"], healed[1]["next_model"]) == ("one", "gpt-4o")


def test_a_crash_does_not_give_a_turn_its_retries_back(store_url: str, tmp_path: Path) -> None:
    with ProviderSimulator(faults=[{"kind": "error", "status": 500}]) as sim:
        long_pauses = "[heals]\nfirst_pause_seconds = 8.0\ntransient_retries = 1\n"
        with gateway_before(sim, store_url, tmp_path, more=long_pauses) as gateway:
            user = HttpUser(gateway)
            asked = user.say("k", "one", background=True, store=True).json()
            deadline = time.monotonic() + 100
            while not _heals(user, "k"):
                assert time.monotonic() < deadline
            gateway.kill()
            assert len(sim.requests()) == 1
            gateway.start()
            user = HttpUser(gateway)
            while user.get(f"/v1/responses/{asked['id']}")["status"] != "failed":
                assert time.monotonic() < deadline
            assert len(sim.requests()) == 2
            assert [heal["action"] for heal in _heals(user, "k")] == ["retried"]
