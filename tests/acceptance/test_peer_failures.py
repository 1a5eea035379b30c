"""What other stateful servers were seen to get wrong, one test for each: real processes, clients.

The model answers how many messages it was shown, so a lost or doubled one is seen at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from agents import Agent, OpenAIResponsesModel, Runner, function_tool
from agents.run import RunConfig
from openai.types.responses import Response

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import gateway_before

MODEL = "gpt-4.1"


@pytest.fixture(name="simulator", scope="module")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=11) as simulator:
        yield simulator


@pytest.fixture(name="gateway", scope="module")
def _gateway(
    simulator: ProviderSimulator,
    lasting_store_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("peers")
    chat = f'[[upstream]]\nname = "chat"\nurl = "{simulator.base_url}"\napi = "chat"\n'
    with gateway_before(
        simulator,
        lasting_store_url,
        folder,
        upstream=f'models = ["gpt-*"]\n{chat}key_env = "STORY_KEY"\n',
    ) as gateway:
        yield gateway


@contextmanager
def _client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture(name="client")
def _open_client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with _client(gateway) as client:
        yield client


def _seen(response: Response) -> int:
    """Return how many messages the model was shown."""
    assert response.status == "completed"
    return int(response.output_text.removeprefix("Messages seen: ").split(".")[0])


def _chain(client: openai.OpenAI, *texts: str, parent: str | None = None) -> list[Response]:
    made: list[Response] = []
    for text in texts:
        made.append(client.responses.create(model=MODEL, input=text, previous_response_id=parent))
        parent = made[-1].id
    return made


def _talk(client: openai.OpenAI, conversation: str, text: str) -> Response:
    return client.responses.create(model=MODEL, input=text, conversation=conversation)


def test_a_chain_remembers_and_its_branches_do_not_mix(client: openai.OpenAI) -> None:
    first, second, third = _chain(client, "one", "two", "three")
    assert [_seen(one) for one in (first, second, third)] == [1, 3, 5]
    [branch] = _chain(client, "another two", parent=first.id)
    assert _seen(branch) == 3
    [after_branch, after_third] = [
        _chain(client, "more", parent=parent.id)[0] for parent in (branch, third)
    ]
    assert (_seen(after_branch), _seen(after_third)) == (5, 7)
    texts = [str(item) for item in client.responses.input_items.list(after_branch.id)]
    assert not [text for text in texts if "three" in text]


def test_a_response_deleted_in_the_middle_of_a_chain_breaks_nothing(client: openai.OpenAI) -> None:
    _, middle, last = _chain(client, "one", "two", "three")
    client.responses.delete(middle.id)
    assert _seen(_chain(client, "four", parent=last.id)[0]) == 7
    with pytest.raises(openai.BadRequestError, match="not found"):
        _chain(client, "four", parent=middle.id)


@pytest.mark.parametrize("parent", ["resp_unknown", "resp_", "msg_1", "conv_1", "..", "resp_" * 99])
def test_an_unknown_parent_is_an_error_and_not_amnesia(client: openai.OpenAI, parent: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        _chain(client, "two", parent=parent)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"


def test_an_item_added_between_turns_is_shown(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    _talk(client, made.id, "one")
    assert _seen(_talk(client, made.id, "two")) == 3
    client.conversations.items.create(made.id, items=[{"role": "user", "content": "by the way"}])
    assert _seen(_talk(client, made.id, "three")) == 6


def test_an_item_deleted_between_turns_is_not_shown(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    _talk(client, made.id, "one")
    _talk(client, made.id, "two")
    oldest = next(iter(client.conversations.items.list(made.id, order="asc")))
    assert oldest.id is not None
    client.conversations.items.delete(oldest.id, conversation_id=made.id)
    assert _seen(_talk(client, made.id, "three")) == 4


def test_forty_items_brought_along_are_all_shown(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    for _ in range(2):
        items: Any = [{"role": "user", "content": f"item {n}"} for n in range(20)]
        client.conversations.items.create(made.id, items=items)
    assert _seen(_talk(client, made.id, "how many?")) == 41


def test_parallel_turns_on_one_conversation_are_serial(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    with ThreadPoolExecutor(5) as pool:
        told = list(pool.map(lambda n: _talk(client, made.id, f"turn {n}"), range(5)))
    assert sorted(_seen(one) for one in told) == [1, 3, 5, 7, 9]
    listed: list[Any] = list(client.conversations.items.list(made.id, order="asc"))
    assert [item.role for item in listed] == ["user", "assistant"] * 5
    assert _seen(_talk(client, made.id, "and now?")) == 11


def test_a_response_whose_upstream_died_is_no_parent(
    client: openai.OpenAI, simulator: ProviderSimulator
) -> None:
    simulator.add_answer("a rather long answer in many words", when={"text": "die"}, times=1)
    simulator.add_fault("cut", event=7, ending="reset", times=1, when={"text": "die"})
    events = list(client.responses.create(model=MODEL, input="die", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    # What had been said is kept, and shown for what it is.
    kept = client.responses.retrieve(last.response.id)
    assert kept.status == "failed"
    assert kept.output_text.startswith("a")
    with pytest.raises(openai.BadRequestError) as refused:
        _chain(client, "go on", parent=last.response.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_client_that_disconnects_can_go_on_from_its_response(
    client: openai.OpenAI, simulator: ProviderSimulator
) -> None:
    with simulator.hold(at="event", event=6, when={"text": "leave"}) as barrier:
        stream = client.responses.create(model=MODEL, input="leave", stream=True)
        created = next(iter(stream))
        assert created.type == "response.created"
        barrier.wait_held(1)
        stream.close()
    assert _seen(_chain(client, "back", parent=created.response.id)[0]) == 3
    assert client.responses.retrieve(created.response.id).status == "completed"


def test_background_runs_outlive_a_killed_process(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    with simulator.hold(when={"text": "job"}) as barrier, _client(gateway) as client:
        begun = [
            client.responses.create(model=MODEL, input=f"job {n}", background=True)
            for n in range(3)
        ]
        barrier.wait_held(3)
        gateway.kill()
    gateway.start()
    with _client(gateway) as client:
        for one in begun:
            last = list(client.responses.retrieve(one.id, stream=True))[-1]
            assert last.type == "response.completed"
            assert _seen(client.responses.retrieve(one.id)) == 1
            assert _seen(_chain(client, "next", parent=one.id)[0]) == 3


@pytest.mark.parametrize("is_background", [False, True])
def test_a_stream_is_resumed_after_any_event(client: openai.OpenAI, is_background: bool) -> None:
    told = list(
        client.responses.create(model=MODEL, input="tell", stream=True, background=is_background)
    )
    created = told[0]
    assert created.type == "response.created"
    for place in range(len(told)):
        name = created.response.id
        again = list(client.responses.retrieve(name, stream=True, starting_after=place))
        assert again == told[place + 1 :]


def test_a_stream_has_every_event_and_an_end(gateway: GatewayProcess) -> None:
    body = {"model": MODEL, "input": "hi", "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, timeout=60) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith(("event:", "data: [DONE"))]
    kinds = [line.removeprefix("event: response.") for line in lines]
    expected = [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed", "data: [DONE]",
    ]  # fmt: skip
    assert list(dict.fromkeys(kinds)) == expected


def test_input_items_come_in_pages_that_page(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"part {n}"} for n in range(7)]
    made = client.responses.create(model=MODEL, input=items)
    page = client.responses.input_items.list(made.id, limit=3, order="asc")
    raw = page.model_dump()
    assert raw["has_more"] is True
    assert (raw["first_id"], raw["last_id"]) == (page.data[0].id, page.data[-1].id)
    assert len(list(page)) == 7


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/responses/resp_unknown", 404),
        ("GET", "/v1/conversations/conv_unknown", 404),
        ("GET", "/v1/nowhere", 404),
        ("PUT", "/v1/responses", 405),
        ("POST", "/v1/responses", 400),
        ("GET", "/v1/conversations/conv_unknown/items?limit=x", 400),
    ],
)
def test_errors_have_one_shape(
    gateway: GatewayProcess, method: str, path: str, status: int
) -> None:
    content = {"content": b"{"} if method == "POST" else {}
    headers = {"content-type": "application/json"}
    reply = httpx.request(method, gateway.url + path, headers=headers, **content)  # type: ignore[arg-type]
    assert reply.status_code in (status, 404)
    assert set(reply.json()) == {"error"}
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_a_server_that_only_chats_has_the_whole_api_in_front(
    client: openai.OpenAI, simulator: ProviderSimulator
) -> None:
    def ask(**more: Any) -> Response:
        response = client.responses.create(model="chat-1", **more)
        assert isinstance(response, Response)
        return response

    first = ask(input="one")
    second = ask(input="two", previous_response_id=first.id)
    assert (_seen(first), _seen(second)) == (1, 3)
    assert _seen(ask(input="other", previous_response_id=first.id)) == 3
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert len(list(client.responses.input_items.list(second.id))) == 3
    made = client.conversations.create()
    assert [_seen(ask(input="x", conversation=made.id)) for _ in range(2)] == [1, 3]
    with simulator.hold(when={"text": "later"}):
        begun = ask(input="later", background=True)
        assert begun.status in ("queued", "in_progress")
    assert list(client.responses.retrieve(begun.id, stream=True))[-1].type == "response.completed"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_what_was_answered_can_be_continued_at_once(client: openai.OpenAI) -> None:
    for number in range(5):
        stream = client.responses.create(model=MODEL, input=f"at once {number}", stream=True)
        last = list(stream)[-1]
        assert last.type == "response.completed"
        assert _seen(_chain(client, "go on", parent=last.response.id)[0]) == 3


@function_tool
def check(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


async def test_a_server_that_names_all_calls_alike_ends_its_runs(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    fault = simulator.add_fault("constant_call_ids")
    try:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
            made = await client.conversations.create()
            agent = Agent(name="A", model=OpenAIResponsesModel(MODEL, client), tools=[check])
            run: Callable[..., Any] = Runner.run
            for text in ('call check {"place": "here"}', 'call check {"place": "there"}', "thanks"):
                result = await run(
                    agent,
                    text,
                    conversation_id=made.id,
                    run_config=RunConfig(tracing_disabled=True),
                    max_turns=3,
                )
                assert "Messages seen: " in str(result.final_output)
            listed = [item async for item in client.conversations.items.list(made.id)]
            calls = {item.call_id for item in listed if item.type == "function_call"}
            assert len(calls) == 2
    finally:
        simulator.remove_fault(fault)
