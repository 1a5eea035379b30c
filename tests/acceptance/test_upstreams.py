"""Upstreams configured by flags alone."""

from pathlib import Path

import openai
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.store_urls import sqlite_url

MODEL = "gpt-5.4"


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
