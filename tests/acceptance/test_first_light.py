"""The shortest story: a keyed chat, a killed process, and the history is still there."""

from pathlib import Path

import httpx
import openai

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url


def _say(gateway: GatewayProcess, text: str) -> str:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1",
        api_key="none",
        default_headers={"X-Session-Key": "ada"},
        max_retries=0,
    ) as client:
        completion = client.chat.completions.create(
            model="holdfast-demo", messages=[{"role": "user", "content": text}]
        )
    return completion.choices[0].message.content or ""


def test_memory_survives_the_death_of_the_process(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        assert "I am Ada" in _say(gateway, "I am Ada")
        gateway.kill()
        gateway.start()
        assert "the first was 'I am Ada'" in _say(gateway, "who am I?")


def test_sigterm_is_a_clean_stop(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        assert httpx.get(f"{gateway.url}/readyz").status_code == 200
        assert gateway.stop() == 0


def test_a_streamed_response_ends_in_its_terminal_event(tmp_path: Path) -> None:
    with (
        running_gateway(sqlite_url(tmp_path)) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client,
    ):
        events = list(client.responses.create(model="holdfast-demo", input="hello", stream=True))
        assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
        assert events[-1].type == "response.completed"
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kept = client.responses.retrieve(events[-1].response.id)
        assert kept.output_text == events[-1].response.output_text
