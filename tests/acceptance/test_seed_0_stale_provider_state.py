"""Story 0: ids were chained that the provider had not kept, and every turn became a 404.

State is kept only of completed answers, `store` is explicit where we chain, and a refusal costs
one extra call in the one session it belongs to.
"""

from pathlib import Path
from typing import Any

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import HttpUser, answer_text, gateway_before

CHAIN = 'state = "chain"'


def _bodies(simulator: ProviderSimulator) -> list[dict[str, Any]]:
    return [request.body for request in simulator.requests() if request.path.endswith("/responses")]


def test_a_provider_that_forgets_costs_one_extra_call_in_its_own_session(
    store_url: str, tmp_path: Path
) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path, upstream=CHAIN) as gw:
        user = HttpUser(gw)
        for key in ("one", "other"):
            answer_text(user.say(key, "I am Ada"))
        answer_text(user.say("one", "still there?"))
        chained = _bodies(sim)
        assert all(body["store"] is True for body in chained)
        assert chained[-1].get("previous_response_id")
        assert len(chained[-1]["input"]) == 1  # the new words alone
        sim.forget()
        sim.clear_record()
        assert "Messages seen: 5" in answer_text(user.say("one", "who am I?"))
        first, second = _bodies(sim)
        assert first.get("previous_response_id")
        assert "previous_response_id" not in second or second["previous_response_id"] is None
        assert len(second["input"]) == 5  # the whole history, once
        turn = user.session("one")["last_turn"]["id"]
        runs = user.get(f"/v1/turns/{turn}")["runs"]
        assert [heal["failure_class"] for heal in runs[-1]["heals"]] == ["stale_state"]
        assert answer_text(user.say("other", "and I?"))


def test_a_second_refusal_reaches_the_caller_and_the_session_goes_on(
    store_url: str, tmp_path: Path
) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path, upstream=CHAIN) as gw:
        user = HttpUser(gw)
        answer_text(user.say("k", "hello"))
        rule = sim.add_fault("R02", times=2)
        failed = user.say("k", "again")
        assert failed.status_code == 400
        assert failed.json()["error"]["code"] == "previous_response_not_found"
        sim.remove_fault(rule)
        answer_text(user.say("k", "and now?"))


def test_a_stream_that_broke_off_leaves_nothing_to_chain_to(store_url: str, tmp_path: Path) -> None:
    with ProviderSimulator() as sim, gateway_before(sim, store_url, tmp_path, upstream=CHAIN) as gw:
        user = HttpUser(gw)
        answer_text(user.say("k", "hello, " * 40))
        answer_text(user.say("k", "and again"))  # the model shows that it remembers
        sim.add_fault("cut", event=6, ending="reset", times=1, when={"stream": True})
        broken = user.say("k", "tell me more", stream=True)
        assert "event: response.failed" in broken.text
        sim.clear_record()
        answer_text(user.say("k", "go on"))
        (body,) = _bodies(sim)
        assert body.get("previous_response_id")
        assert "tell me more" in str(body["input"]), "what was never kept is sent again"
