"""The official clients run against the simulator unmodified."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

import httpx
import openai
import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam

from holdfast.testing.simulator.provider import ProviderSimulator

set_tracing_disabled(True)
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": False,
}
CHAT_WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object"}},
}


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=7) as running:
        yield running


@pytest.fixture(name="client")
def _client(simulator: ProviderSimulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=simulator.base_url, api_key="sk-a", max_retries=0) as client:
        yield client


@pytest.fixture(name="aclient")
async def _aclient(simulator: ProviderSimulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=simulator.base_url, api_key="sk-a", max_retries=0
    ) as client:
        yield client


def test_a_chained_response_sees_its_parents(client: openai.OpenAI) -> None:
    first = client.responses.create(model="gpt-4.1", input="I am Ada")
    second = client.responses.create(
        model="gpt-4.1", input="who am I?", previous_response_id=first.id
    )
    assert first.output_text == "Messages seen: 1. Last text: I am Ada"
    assert second.output_text == "Messages seen: 3. Last text: who am I?"
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens


def test_a_response_is_retrieved_listed_and_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(model="gpt-5.4", input="one", metadata={"who": "me"})
    second = client.responses.create(
        model="gpt-5.4",
        input=[{"role": "user", "content": f"item {n}"} for n in range(5)],
        previous_response_id=first.id,
    )
    assert client.responses.retrieve(first.id) == first
    assert first.metadata == {"who": "me"}
    page = client.responses.input_items.list(second.id, order="asc", limit=3)
    listed = list(page)
    assert len(listed) == 1 + 2 + 5
    assert len({item.id for item in listed}) == 8
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(first.id)


def test_a_response_that_is_not_stored_cannot_be_retrieved(client: openai.OpenAI) -> None:
    made = client.responses.create(model="gpt-4.1", input="secret", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_streamed_response_has_all_events_in_order(client: openai.OpenAI) -> None:
    events = list(
        client.responses.create(
            model="gpt-5.4", input="hi", stream=True, reasoning={"summary": "auto"}
        )
    )
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "response.reasoning_summary_text.delta" in kinds
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert said == last.response.output_text == "Messages seen: 1. Last text: hi"
    again = list(client.responses.retrieve(last.response.id, stream=True, starting_after=5))
    assert [event.sequence_number for event in again] == list(range(6, len(events)))


def test_the_streaming_helper_builds_the_same_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="gpt-4.1", input="hi") as stream:
        final = stream.get_final_response()
    assert final.output_text == "Messages seen: 1. Last text: hi"


def test_a_message_may_ask_for_tool_calls(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="gpt-4.1",
        input='call get_weather {"city": "Paris"} and then call get_weather {"city": "Rome"}',
        tools=[WEATHER],
    )
    calls = [item for item in made.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    forced = client.responses.create(
        model="gpt-4.1", input="hello", tools=[WEATHER], tool_choice="required"
    )
    (call,) = forced.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "text"}


def test_a_background_response_is_queued_then_done_or_cancelled(
    simulator: ProviderSimulator, client: openai.OpenAI
) -> None:
    made = client.responses.create(model="gpt-4.1", input="hi", background=True)
    assert made.status == "queued"
    assert client.responses.retrieve(made.id).status == "completed"
    with simulator.hold(when={"operation": "create"}) as barrier:
        slow = client.responses.create(model="gpt-4.1", input="hi", background=True)
        barrier.wait_held()
        assert client.responses.retrieve(slow.id).status == "in_progress"
        assert client.responses.cancel(slow.id).status == "cancelled"
    assert client.responses.retrieve(slow.id).status == "cancelled"
    plain = client.responses.create(model="gpt-4.1", input="hi")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(plain.id)


def test_conversations_store_the_items_of_their_responses(client: openai.OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "zero"}], metadata={"a": "b"}
    )
    answer = client.responses.create(model="gpt-4.1", input="one", conversation=conversation.id)
    assert answer.output_text == "Messages seen: 2. Last text: one"
    client.conversations.items.create(
        conversation.id,
        items=[{"type": "message", "role": "user", "content": f"n{n}"} for n in range(20)],
    )
    listed = list(client.conversations.items.list(conversation.id, order="asc", limit=7))
    assert len(listed) == 23
    assert listed == list(client.conversations.items.list(conversation.id))[::-1]
    gone = listed[0].id
    assert gone is not None
    client.conversations.items.delete(gone, conversation_id=conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(gone, conversation_id=conversation.id)
    updated = client.conversations.update(conversation.id, metadata={"c": "d"})
    assert updated.metadata == {"c": "d"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.conversations.retrieve(conversation.id)


def test_compaction_keeps_the_number_of_messages(client: openai.OpenAI) -> None:
    first = client.responses.create(model="gpt-4.1", input="one")
    compacted = client.responses.compact(model="gpt-4.1", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    replay = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    answer = client.responses.create(
        model="gpt-4.1",
        input=[*replay, {"role": "user", "content": "two"}],  # type: ignore[list-item]  # items as they came
    )
    assert answer.output_text == "Messages seen: 3. Last text: two"
    counted = client.responses.input_tokens.count(model="gpt-4.1", input="word " * 40)
    assert counted.input_tokens == 53


def test_chat_answers_streams_and_calls_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="gpt-4.1", messages=[{"role": "user", "content": "hi"}]
    )
    assert answer.choices[0].message.content == "Messages seen: 1. Last text: hi"
    chunks = list(
        client.chat.completions.create(
            model="gpt-4.1",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == "Messages seen: 1. Last text: hi"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == answer.usage
    called = client.chat.completions.create(
        model="gpt-4.1",
        messages=[{"role": "user", "content": 'call get_weather {"city": "Paris"}'}],
        tools=[CHAT_WEATHER],
    )
    assert called.choices[0].finish_reason == "tool_calls"
    made = called.choices[0].message.tool_calls
    assert made is not None
    assert made[0].type == "function"
    assert made[0].function.arguments == '{"city": "Paris"}'


def test_stored_chat_completions_are_listed_changed_and_deleted(client: openai.OpenAI) -> None:
    for number in range(3):
        client.chat.completions.create(
            model="gpt-4.1",
            messages=[{"role": "user", "content": f"n{number}"}],
            store=True,
            metadata={"number": str(number)},
        )
    assert len(list(client.chat.completions.list(limit=2))) == 3
    (one,) = client.chat.completions.list(metadata={"number": "1"})
    assert client.chat.completions.retrieve(one.id).id == one.id
    assert [m.content for m in client.chat.completions.messages.list(one.id)] == ["n1"]
    client.chat.completions.update(one.id, metadata={"number": "9"})
    assert list(client.chat.completions.list(metadata={"number": "1"})) == []
    assert client.chat.completions.delete(one.id).deleted


def test_models_are_listed(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert "gpt-5.4" in names
    assert client.models.retrieve("gpt-5.4").id == "gpt-5.4"


def test_a_websocket_keeps_a_chain_that_is_not_stored(client: openai.OpenAI) -> None:
    with client.responses.connect() as socket:
        socket.response.create(model="gpt-4.1", input="one", store=False)
        first = next(e for e in socket if e.type == "response.completed").response
        socket.response.create(
            model="gpt-4.1", input="two", store=False, previous_response_id=first.id
        )
        second = next(e for e in socket if e.type == "response.completed").response
        assert second.output_text == "Messages seen: 3. Last text: two"
        socket.response.create(model="gpt-4.1", input="x", previous_response_id=first.id)
        refused = socket.recv()
        assert refused.type == "error"
        assert refused.to_dict() == {
            "type": "error",
            "status": 400,
            "error": {
                "message": f"Previous response with id '{first.id}' not found.",
                "type": "invalid_request_error",
                "param": "previous_response_id",
                "code": "previous_response_not_found",
            },
        }
        socket.response.create(model="gpt-4.1", input="state", generate=False)
        warm = next(e for e in socket if e.type == "response.completed").response
        assert warm.output == []
        socket.response.create(model="gpt-4.1", input="go", previous_response_id=warm.id)
        last = next(e for e in socket if e.type == "response.completed").response
        assert last.output_text == "Messages seen: 2. Last text: go"


@pytest.mark.parametrize("ending", ["clean", "eof", "reset"])
async def test_a_websocket_is_cut_like_any_stream(
    simulator: ProviderSimulator, aclient: openai.AsyncOpenAI, ending: str
) -> None:
    simulator.add_fault("cut", event=3, ending=ending, when={"method": "WS"})
    seen: list[str] = []
    ends_badly = pytest.raises(Exception, match="close") if ending != "clean" else nullcontext()
    async with aclient.responses.connect() as socket:
        await socket.response.create(model="gpt-4.1", input="one")
        with ends_badly:
            async for event in socket:
                seen += [event.type]
    assert len(seen) == 3


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_an_agent_calls_its_tool_and_answers(aclient: openai.AsyncOpenAI, api: str) -> None:
    model: OpenAIResponsesModel | OpenAIChatCompletionsModel = (
        OpenAIResponsesModel("gpt-5.4", aclient)
        if api == "responses"
        else OpenAIChatCompletionsModel("gpt-4.1", aclient)
    )
    agent = Agent(name="clerk", model=model, tools=[get_weather], instructions="Be short.")
    asked = 'please call get_weather {"city": "Paris"}'
    result = await Runner.run(agent, asked)
    assert result.final_output == "Messages seen: 1. Last text: sunny in Paris"
    streamed = Runner.run_streamed(agent, asked)
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == result.final_output


async def test_an_agent_chains_by_response_and_by_conversation(
    aclient: openai.AsyncOpenAI,
) -> None:
    agent = Agent(name="clerk", model=OpenAIResponsesModel("gpt-5.4", aclient), tools=[get_weather])
    asked = 'call get_weather {"city": "Paris"}'
    first = await Runner.run(agent, asked, auto_previous_response_id=True)
    second = await Runner.run(agent, "and now?", previous_response_id=first.last_response_id)
    assert second.final_output == "Messages seen: 3. Last text: and now?"
    conversation = await aclient.conversations.create()
    await Runner.run(agent, asked, conversation_id=conversation.id)
    third = await Runner.run(agent, "and now?", conversation_id=conversation.id)
    assert third.final_output == "Messages seen: 3. Last text: and now?"


@pytest.mark.parametrize(("model", "surviving"), [("gpt-5.2", 4), ("gpt-5.5", 1)])
async def test_a_conversations_session_loses_assistant_items_with_some_models(
    model: str, surviving: int
) -> None:
    with ProviderSimulator({"unlink_models": ["gpt-5.[45]"]}) as simulator:
        async with openai.AsyncOpenAI(base_url=simulator.base_url, api_key="k") as client:
            session = OpenAIConversationsSession(openai_client=client)
            agent = Agent(name="Repro", model=OpenAIResponsesModel(model, client))
            for text in ("hi", "what can you do?", "give me one example", "thanks"):
                await Runner.run(agent, text, session=session)
            items = await session.get_items()
    roles = [dict(item).get("role") for item in items]
    assert roles.count("user") == 4
    assert roles.count("assistant") == surviving


async def test_agents_wait_for_a_locked_conversation(
    simulator: ProviderSimulator, aclient: openai.AsyncOpenAI
) -> None:
    simulator.add_fault("lock", times=1, when={"api": "responses"})
    agent = Agent(name="clerk", model=OpenAIResponsesModel("gpt-4.1", aclient))
    conversation = await aclient.conversations.create()
    result = await Runner.run(agent, "hi", conversation_id=conversation.id)
    assert result.final_output == "Messages seen: 1. Last text: hi"
    statuses = [request.status for request in simulator.requests(api="responses")]
    assert statuses == [400, 200]


def test_the_sdk_retries_what_it_should_and_nothing_else(simulator: ProviderSimulator) -> None:
    with openai.OpenAI(base_url=simulator.base_url, api_key="k", max_retries=2) as client:
        simulator.add_fault("rate_limit", retry_after_seconds=0.01, times=1)
        simulator.add_fault("error", status=503, retry_after_seconds=0.01, times=1)
        assert client.responses.create(model="m", input="hi").status == "completed"
        tries = [r.headers["x-stainless-retry-count"] for r in simulator.requests()]
        assert tries == ["0", "1", "2"]


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    with ProviderSimulator() as simulator:
        assert httpx.get(simulator.url).status_code == 200
    assert threading.active_count() == before


async def test_many_clients_at_once_get_their_own_answers(
    simulator: ProviderSimulator, aclient: openai.AsyncOpenAI
) -> None:
    answers = await asyncio.gather(
        *(aclient.responses.create(model="gpt-4.1", input=f"n{n}") for n in range(30))
    )
    assert [a.output_text[-3:].strip().split()[-1] for a in answers] == [f"n{n}" for n in range(30)]
    assert len({answer.id for answer in answers}) == 30
