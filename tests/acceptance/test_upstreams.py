"""Upstreams as an operator configures them: by file or by flags, in every state mode."""

from pathlib import Path

import openai
import pytest

from holdfast.testing.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, sqlite_url

MODEL = "gpt-5.4"


def _configured(folder: Path, simulator: ProviderSimulator, state: str) -> GatewayProcess:
    config = folder / "holdfast.toml"
    config.write_text(
        f"""
[[upstream]]
name = "simulated"
url = "{simulator.base_url}"
api = "responses"
key_env = "SIMULATED_KEY"
models = ["gpt-*"]
state = "{state}"
"""
    )
    return GatewayProcess(
        sqlite_url(folder), "--config", str(config), env={"SIMULATED_KEY": simulator.key}
    )


def _say(gateway: GatewayProcess, key: str, text: str, *, is_stream: bool) -> str:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0,
        default_headers={"X-Session-Key": key},
    ) as client:  # fmt: skip
        if not is_stream:
            return client.responses.create(model=MODEL, input=text).output_text
        events = list(client.responses.create(model=MODEL, input=text, stream=True))
        assert events[-1].type == "response.completed"
        return events[-1].response.output_text


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("state", ["chain", "conversation"])
def test_a_provider_that_forgot_is_told_everything_once(
    tmp_path: Path, state: str, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        gateway = _configured(tmp_path, simulator, state)
        gateway.start()
        try:
            _say(gateway, "ada", "I am Ada", is_stream=is_stream)
            _say(gateway, "bob", "I am Bob", is_stream=is_stream)
            [chained] = [
                request
                for request in simulator.requests(api="responses", operation="create")
                if "Ada" in str(request.body)
            ]
            simulator.forget(chained.body.get("conversation") or chained.answer_id)
            simulator.clear_record()

            said = _say(gateway, "ada", "who am I?", is_stream=is_stream)
            assert said == "Messages seen: 3. Last text: who am I?"
            statuses = [r.status for r in simulator.requests(api="responses", operation="create")]
            # A conversation is looked at before the model is asked; a response is not.
            assert statuses == ([200] if state == "conversation" else [400, 200])

            simulator.clear_record()
            assert _say(gateway, "bob", "and I?", is_stream=is_stream).startswith(
                "Messages seen: 3"
            )
            [untouched] = simulator.requests(api="responses", operation="create")
            assert len(untouched.body["input"]) == 1
        finally:
            gateway.kill()


def test_the_chain_survives_the_death_of_the_gateway(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        gateway = _configured(tmp_path, simulator, "chain")
        gateway.start()
        try:
            _say(gateway, "ada", "I am Ada", is_stream=False)
            gateway.kill()
            gateway.start()
            said = _say(gateway, "ada", "who am I?", is_stream=False)
            assert said == "Messages seen: 3. Last text: who am I?"
            assert simulator.requests()[-1].body["previous_response_id"]
        finally:
            gateway.kill()


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_one_upstream_by_flags_alone(tmp_path: Path, api: str) -> None:
    with ProviderSimulator({"keys": ["sk-from-env"]}) as simulator:
        gateway = GatewayProcess(
            sqlite_url(tmp_path), "--upstream", simulator.base_url, "--upstream-api", api,
            env={"HOLDFAST_UPSTREAM_KEY": "sk-from-env"},
        )  # fmt: skip
        gateway.start()
        try:
            _say(gateway, "ada", "I am Ada", is_stream=False)
            said = _say(gateway, "ada", "who am I?", is_stream=True)
            assert said == "Messages seen: 3. Last text: who am I?"
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
                assert MODEL in [model.id for model in client.models.list()]
                assert client.models.retrieve(MODEL).id == MODEL
        finally:
            gateway.kill()
