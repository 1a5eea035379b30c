"""Compaction with the official client, real processes and both databases."""

import threading
from pathlib import Path
from typing import Any

import httpx
import openai

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import MODEL, HttpUser, answer_text, gateway_before

SMALL = "context_tokens = 2000"
BY_MODEL = '[context]\nmode = "model"\nmodel = "sum"'
SUMMARY = {"when": {"model": "sum"}, "text": "They spoke of words."}


def client_of(gateway: GatewayProcess, **headers: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, default_headers=headers
    )


def test_the_official_client_compacts_carries_the_item_and_goes_on(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator({"answer": [SUMMARY]}) as simulator,
        gateway_before(simulator, store_url, tmp_path, more=BY_MODEL) as gateway,
        client_of(gateway) as client,
    ):
        first = client.responses.create(model=MODEL, input="one")
        second = client.responses.create(
            model=MODEL, input="two", previous_response_id=first.id
        )  # fmt: skip
        compacted = client.responses.compact(model=MODEL, previous_response_id=second.id)
        assert compacted.object == "response.compaction"
        assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
        assert compacted.usage.total_tokens > 0
        carried: list[Any] = [
            item.model_dump(exclude_none=True, warnings=False) for item in compacted.output
        ]
        simulator.clear_record()
        said = client.responses.create(
            model=MODEL, input=[*carried, {"role": "user", "content": "three"}]
        )
        assert said.output_text == "Messages seen: 4. Last text: three"
        assert "They spoke of words." in str(simulator.requests()[0].body)


def test_the_official_client_asks_for_compaction_at_a_threshold(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator({"answer": [SUMMARY]}) as simulator,
        gateway_before(simulator, store_url, tmp_path, more=BY_MODEL) as gateway,
        client_of(gateway, **{"X-Session-Key": "k"}) as client,
    ):
        kinds: list[str] = []
        for number in range(6):
            events = client.responses.create(
                model=MODEL,
                input=f"turn {number}: " + "word " * 150,
                context_management=[{"type": "compaction", "compact_threshold": 600}],
                stream=True,
            )
            last = list(events)[-1]
            assert last.type == "response.completed"
            kinds += [item.type for item in last.response.output]
        assert "compaction" in kinds
        triggered = client.responses.create(model=MODEL, input=[{"type": "compaction_trigger"}])
        assert [item.type for item in triggered.output] == ["compaction"]
        session = HttpUser(gateway).session("k")
        listed = HttpUser(gateway).get(f"/v1/sessions/{session['id']}/compactions")["data"]
        assert listed[0]["reason"] == "trigger"
        assert {one["reason"] for one in listed[1:]} == {"threshold"}
        assert session["item_count"] >= 13


def test_a_process_killed_while_a_summary_is_made_leaves_the_session_as_it_was(
    store_url: str, tmp_path: Path
) -> None:
    with (
        ProviderSimulator({"answer": [SUMMARY], "context_tokens": 2000}) as simulator,
        gateway_before(simulator, store_url, tmp_path, upstream=SMALL, more=BY_MODEL) as gateway,
    ):
        user = HttpUser(gateway)
        for number in range(3):
            answer_text(user.say("k", f"turn {number}: " + "word " * 60))
        once = {"headers": {"Idempotency-Key": "once"}}
        said = "now: " + "word " * 300
        with simulator.hold(when={"model": "sum"}, at="arrival") as barrier:
            caller = threading.Thread(target=_hear_nothing, args=(user, said, once))
            caller.start()
            barrier.wait_held(wait_seconds=30)
            gateway.kill()
            caller.join()
        gateway.start()
        session = user.session("k")
        assert user.get(f"/v1/sessions/{session['id']}/compactions")["data"] == []
        assert "now:" in answer_text(user.say("k", said, **once))
        assert "now:" in answer_text(user.say("k", said, **once))
        [made] = user.get(f"/v1/sessions/{session['id']}/compactions")["data"]
        assert (made["status"], made["mode"]) == ("in_force", "model")
        after = user.session("k")
        assert (after["id"], after["turn_count"]) == (session["id"], 4)
        assert {request.fault for request in simulator.requests()} == {None}


def _hear_nothing(user: HttpUser, said: str, more: dict[str, Any]) -> None:
    try:
        user.say("k", said, **more)
    except httpx.TransportError:
        return
    raise AssertionError("the gateway was killed and answered")
