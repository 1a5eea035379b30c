"""Provider state, mode by mode, through real processes on both databases."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway

MODELS = {"replay": "gpt-4.1", "chain": "gpt-5.4", "conversation": "gpt-4o"}
_numbers = count()
TOOL: Any = {
    "type": "function",
    "name": "look",
    "strict": False,
    "parameters": {"type": "object", "properties": {}},
}


@pytest.fixture(name="simulator", scope="module")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=2) as simulator:
        yield simulator


@pytest.fixture(name="gateway", scope="module")
def _gateway(
    simulator: ProviderSimulator,
    lasting_store_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    config = tmp_path_factory.mktemp("modes") / "holdfast.toml"
    config.write_text(
        "".join(
            f'[[upstream]]\nname = "{mode}"\nurl = "{simulator.base_url}"\napi = "responses"\n'
            f'key_env = "SIMULATED_KEY"\nmodels = ["{model}"]\nstate = "{mode}"\n'
            for mode, model in MODELS.items()
        )
    )
    env = {"SIMULATED_KEY": simulator.key}
    with running_gateway(lasting_store_url, "--config", str(config), env=env) as gateway:
        yield gateway


class Talk:
    """One conversation under a key, with the model of a mode."""

    def __init__(self, gateway: GatewayProcess, simulator: ProviderSimulator, mode: str) -> None:
        self._gateway = gateway
        self._simulator = simulator
        self.model = MODELS[mode]
        self.key = f"{mode}-{next(_numbers)}"

    def say(
        self, said: Any, *, is_stream: bool = False, **more: Any
    ) -> openai.types.responses.Response:
        """Take one turn."""
        self._simulator.clear_record()
        with openai.OpenAI(
            base_url=f"{self._gateway.url}/v1", api_key="none", max_retries=0, timeout=60,
            default_headers={"X-Session-Key": self.key},
        ) as client:  # fmt: skip
            asked: dict[str, Any] = {"model": self.model, "input": said, **more}
            if not is_stream:
                whole = client.responses.create(**asked)
                assert isinstance(whole, openai.types.responses.Response)
                return whole
            last = list(client.responses.create(stream=True, **asked))[-1]
            assert last.type == "response.completed"
            ended: openai.types.responses.Response = last.response
            return ended

    @property
    def sent(self) -> list[dict[str, Any]]:
        """What the provider was sent for the last turn."""
        asked = self._simulator.requests(api="responses", operation="create")
        return [request.body for request in asked]


@pytest.fixture(name="mode", params=list(MODELS))
def _mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="talk")
def _talk(gateway: GatewayProcess, simulator: ProviderSimulator, mode: str) -> Talk:
    return Talk(gateway, simulator, mode)


@pytest.mark.parametrize("is_stream", [False, True])
def test_each_mode_sends_what_its_provider_needs_and_no_more(
    talk: Talk, mode: str, is_stream: bool
) -> None:
    talk.say("one", is_stream=is_stream)
    said = talk.say("two", is_stream=is_stream)
    assert said.output_text == "Messages seen: 3. Last text: two"
    [body] = talk.sent
    if mode == "replay":
        assert body["store"] is False
        assert [item["role"] for item in body["input"] if item.get("role")] == [
            "user", "assistant", "user",
        ]  # fmt: skip
        assert not {"previous_response_id", "conversation"} & set(body)
        return
    assert body["store"] is True
    assert len(body["input"]) == 1
    name = {"chain": "previous_response_id", "conversation": "conversation"}[mode]
    assert body[name]


def test_tools_are_called_and_answered_in_each_mode(talk: Talk) -> None:
    asked = talk.say("call look {}", tools=[TOOL])
    call = next(item for item in asked.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "a cat"}
    assert "Last text: a cat" in talk.say([output], tools=[TOOL]).output_text
    assert talk.say("thanks").output_text.startswith("Messages seen: 3")


def test_what_a_provider_remembers_outlives_the_gateway(
    talk: Talk, gateway: GatewayProcess, mode: str
) -> None:
    talk.say("one")
    gateway.kill()
    gateway.start()
    assert talk.say("two").output_text == "Messages seen: 3. Last text: two"
    [body] = talk.sent
    assert (len(body["input"]) == 1) is (mode != "replay")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_provider_that_forgot_is_sent_the_whole_history_once(
    talk: Talk, simulator: ProviderSimulator, mode: str, is_stream: bool
) -> None:
    talk.say("one", is_stream=is_stream)
    [first] = simulator.requests(api="responses", operation="create")
    simulator.forget(first.body.get("conversation") or first.answer_id)
    said = talk.say("two", is_stream=is_stream)
    assert said.output_text == "Messages seen: 3. Last text: two"
    statuses = [r.status for r in simulator.requests(api="responses", operation="create")]
    # A chain is refused once; that a conversation is gone is seen before it is gone on with.
    assert len(statuses) == (2 if mode == "chain" else 1)
    assert statuses[-1] == 200
    talk.say("three", is_stream=is_stream)
    assert len(talk.sent) == 1


def test_what_is_not_to_be_stored_is_replayed_in_each_mode(talk: Talk) -> None:
    talk.say("one")
    assert talk.say("two", store=False).output_text.startswith("Messages seen: 3")
    [body] = talk.sent
    assert body["store"] is False
    assert not {"previous_response_id", "conversation"} & set(body)
    assert talk.say("three").output_text.startswith("Messages seen: 5")
