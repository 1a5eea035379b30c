"""The demo model with the requests of OpenAI's client, and of clients that force a function."""

import json
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from holdfast.providers.demo import DEMO_MODEL
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["good", "bad"]
    friends: list["Person"]


def _client(gateway: UpstreamGateway) -> AsyncOpenAI:
    headers = {"X-Session-Key": "k"}
    return AsyncOpenAI(
        base_url=f"{gateway.server.url}/v1", api_key="none", default_headers=headers, max_retries=0
    )


async def test_structured_output_is_an_instance_of_its_schema() -> None:
    async with open_upstream_gateway() as gateway, _client(gateway) as client:
        completion = await client.chat.completions.parse(
            model=DEMO_MODEL, messages=[{"role": "user", "content": "who?"}], response_format=Person
        )
        assert isinstance(completion.choices[0].message.parsed, Person)
        response = await client.responses.parse(model=DEMO_MODEL, input="who?", text_format=Person)
        assert isinstance(response.output_parsed, Person)
        whole = await client.chat.completions.create(
            model=DEMO_MODEL,
            messages=[{"role": "user", "content": "who?"}],
            response_format={"type": "json_object"},
        )
        assert json.loads(whole.choices[0].message.content or "")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_named_function_is_called_and_the_next_question_is_answered(
    *, is_stream: bool
) -> None:
    """As instructor asks: one function, whose arguments are the answer."""
    function = {"name": "Person", "parameters": Person.model_json_schema()}
    forced: dict[str, Any] = {
        "model": DEMO_MODEL,
        "messages": [{"role": "user", "content": "who?"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "Person"}},
    }
    async with open_upstream_gateway() as gateway, _client(gateway) as client:
        for _ in range(2):
            if is_stream:
                async with client.chat.completions.stream(**forced) as stream:
                    completion: Any = await stream.get_final_completion()
            else:
                completion = await client.chat.completions.create(**forced)
            [call] = completion.choices[0].message.tool_calls
            assert call.function.name == "Person"
            Person.model_validate_json(call.function.arguments)


async def test_a_schema_that_the_demo_model_cannot_answer_is_refused() -> None:
    wanted = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    async with open_upstream_gateway() as gateway:
        answer = await gateway.post(
            "/v1/responses", model=DEMO_MODEL, input="who?", text={"format": wanted}
        )
        assert answer.status_code == 400
        assert "'not'" in answer.json()["error"]["message"]
