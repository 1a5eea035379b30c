"""Every fault of the catalogue as a client receives it: the exact status, code and text."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from holdfast.simulator.faults.catalogue import CATALOGUE
from holdfast.testing.simulator.provider import ProviderSimulator

Json = dict[str, Any]
INVALID = "invalid_request_error"


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator({"context": {"tiny*": 20}}, seed=7) as running:
        yield running


def client_of(simulator: ProviderSimulator, key: str = "sk-a") -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=simulator.url, headers=headers, timeout=60)


@pytest.fixture(name="http")
def _http(simulator: ProviderSimulator) -> Iterator[httpx.Client]:
    with client_of(simulator) as client:
        yield client


def openai_error(message: str, param: str | None, code: str | None, kind: str = INVALID) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def respond(http: httpx.Client, given: Any, **more: Any) -> httpx.Response:
    body = {"model": "gpt-5.4", "input": given, **more}
    return http.post("/v1/responses", json=body)


def chat(http: httpx.Client, *messages: Json, **more: Any) -> httpx.Response:
    body = {"model": "gpt-4.1", "messages": list(messages), **more}
    return http.post("/v1/chat/completions", json=body)


def claude(http: httpx.Client, *messages: Json, **more: Any) -> httpx.Response:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": list(messages), **more}
    return http.post("/v1/messages", json=body)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def events_of(answer: httpx.Response) -> list[Json]:
    lines = answer.text.splitlines()
    found = [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    return [json.loads(line) for line in found]


CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


def test_r01_an_item_that_was_not_stored_is_not_found(http: httpx.Client) -> None:
    item = respond(http, "hi", store=False).json()["output"][0]
    assert re.fullmatch("rs_[0-9a-f]{48}", item["id"])
    message = (
        f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to "
        "false. Try again with `store` set to true, or remove this item from your input."
    )
    for given in (
        [item, {"role": "assistant", "content": "x"}, user("go on")],
        [{"type": "item_reference", "id": item["id"]}],
    ):
        answer = respond(http, given)
        assert answer.status_code == 404
        assert answer.json() == openai_error(message, "input", None)


@pytest.mark.parametrize("reason", ["unknown", "not stored", "of another account", "failed"])
def test_r02_a_missing_previous_response_is_not_found(
    simulator: ProviderSimulator, http: httpx.Client, reason: str
) -> None:
    parent = "resp_unknown"
    if reason == "not stored":
        parent = respond(http, "hi", store=False).json()["id"]
    elif reason == "of another account":
        with client_of(simulator, "sk-other") as other:
            parent = respond(other, "hi").json()["id"]
    elif reason == "failed":
        simulator.add_fault("failed", times=1)
        parent = respond(http, "hi").json()["id"]
    answer = respond(http, "more", previous_response_id=parent)
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        f"Previous response with id '{parent}' not found.",
        "previous_response_id",
        "previous_response_not_found",
    )


def test_r03_reasoning_needs_the_item_that_followed_it(http: httpx.Client) -> None:
    reasoning, message = respond(http, "hi").json()["output"]
    answer = respond(http, [user("hi"), reasoning, user("go on")])
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        f"Item '{reasoning['id']}' of type 'reasoning' was provided without its required "
        "following item.",
        "input",
        None,
    )
    assert respond(http, [user("hi"), reasoning, message, user("go on")]).status_code == 200


def test_r04_a_call_needs_its_output(http: httpx.Client) -> None:
    answer = respond(http, [user("hi"), CALL, user("go on")])
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "No tool output found for function call call_1.", "input", None
    )


def test_r04_also_applies_to_stored_calls(http: httpx.Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    parent = respond(http, "call f", tools=[tool]).json()
    call_id = parent["output"][-1]["call_id"]
    answer = respond(http, "and?", previous_response_id=parent["id"])
    assert answer.json()["error"]["message"] == (
        f"No tool output found for function call {call_id}."
    )
    output = [{"type": "function_call_output", "call_id": call_id, "output": "fine"}]
    answered = respond(http, output, previous_response_id=parent["id"])
    assert answered.json()["output"][-1]["content"][0]["text"].endswith("Last text: fine")


def test_r05_an_output_needs_its_call(http: httpx.Client) -> None:
    answer = respond(http, [user("hi"), OUTPUT])
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "No tool call found for function call output with call_id call_1.", "input", None
    )


def test_r06_ids_are_unique(http: httpx.Client) -> None:
    message = {**user("hi"), "type": "message", "id": "msg_1"}
    answer = respond(http, [message, message])
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.",
        "input",
        None,
    )


@pytest.mark.parametrize("whose", ["another account", "another model", "nobody"])
def test_r07_encrypted_content_is_valid_only_for_its_account_and_model(
    simulator: ProviderSimulator, http: httpx.Client, whose: str
) -> None:
    include = {"include": ["reasoning.encrypted_content"], "store": False}
    output = respond(http, "hi", **include).json()["output"]
    assert respond(http, [*output, user("more")], store=False).status_code == 200
    if whose == "nobody":
        output[0]["encrypted_content"] = "gAAAA-something-else"
    key = "sk-other" if whose == "another account" else "sk-a"
    model = "gpt-5.5" if whose == "another model" else "gpt-5.4"
    with client_of(simulator, key) as caller:
        answer = respond(caller, [*output, user("more")], model=model)
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        f"The encrypted content for item {output[0]['id']} could not be verified. Reason: "
        "Encrypted content could not be decrypted or parsed.",
        None,
        "invalid_encrypted_content",
    )


LOCKED = openai_error(
    "Another process is currently operating on this conversation. Please retry in a few seconds.",
    "conversation",
    "conversation_locked",
)


def test_r08_a_conversation_in_use_is_locked(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    conversation = http.post("/v1/conversations", json={}).json()["id"]
    with simulator.hold(when={"nth": 1}) as barrier, ThreadPoolExecutor(1) as pool:
        first = pool.submit(respond, http, "one", conversation=conversation)
        barrier.wait_held()
        answer = respond(http, "two", conversation=conversation)
        assert (answer.status_code, answer.json()) == (400, LOCKED)
        items = f"/v1/conversations/{conversation}/items"
        assert http.post(items, json={"items": [user("x")]}).json() == LOCKED
        barrier.release()
        assert first.result().status_code == 200


def test_r09_ids_have_64_characters_at_most(http: httpx.Client) -> None:
    given = [user("hi"), CALL | {"call_id": "c" * 116}, OUTPUT]
    answer = respond(http, given)
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64, "
        "but got a string with length 116 instead.",
        "input[1].call_id",
        "string_above_max_length",
    )


OVERFLOW = (
    "Your input exceeds the context window of this model. Please adjust your input and try again."
)


def test_r10_too_much_input_overflows_before_any_output(http: httpx.Client) -> None:
    answer = respond(http, "word " * 100, model="tiny-1")
    assert answer.status_code == 400
    assert answer.json() == openai_error(OVERFLOW, "input", "context_length_exceeded")


def test_r10_is_avoided_where_the_caller_allows_truncation(http: httpx.Client) -> None:
    given = [user("word " * 100), user("short")]
    answer = respond(http, given, model="tiny-1", truncation="auto").json()
    assert answer["output"][0]["content"][0]["text"] == "Messages seen: 1. Last text: short"


def test_r11_overflow_comes_as_an_event_after_200(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("R11", times=1)
    answer = respond(http, "hi", stream=True)
    assert answer.status_code == 200
    assert events_of(answer)[-1] == {
        "type": "error",
        "sequence_number": 2,
        "error": {
            "type": INVALID,
            "code": "context_length_exceeded",
            "message": OVERFLOW,
            "param": "input",
        },
    }


def test_r11_can_be_the_scenarios_form_of_overflow() -> None:
    told = {"overflow": "stream", "context_tokens": 5}
    with ProviderSimulator(told) as simulator, client_of(simulator) as http:
        answer = respond(http, "word " * 100, stream=True)
        assert events_of(answer)[-1]["error"]["code"] == "context_length_exceeded"


SERVER_FAILURE = (
    "An error occurred while processing your request. You can retry your request, or contact us "
    "through our help center at help.openai.com if the error persists. Please include the request "
    "ID [0-9a-f]{8}-[0-9a-f-]{27} in your message."
)


@pytest.mark.parametrize("style", ["failed", "error"])
def test_r12_the_server_fails_in_mid_stream(
    simulator: ProviderSimulator, http: httpx.Client, style: str
) -> None:
    simulator.add_fault("R12", event=5, style=style)
    answer = respond(http, "hi", stream=True)
    events = events_of(answer)
    assert answer.status_code == 200
    assert [event["sequence_number"] for event in events] == [0, 1, 2, 3, 4, 5]
    last = events[-1]
    if style == "failed":
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        error = last["response"]["error"]
    else:
        assert last["type"] == "error"
        error = last
    assert error["code"] == "server_error"
    assert re.fullmatch(SERVER_FAILURE, error["message"])
    rejected = respond(http, "on", previous_response_id=events[0]["response"]["id"])
    assert rejected.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("ending", ["clean", "eof", "reset"])
def test_r13_a_stream_ends_after_any_number_of_events(
    simulator: ProviderSimulator, http: httpx.Client, ending: str
) -> None:
    whole = events_of(respond(http, "hi", stream=True))
    for k in range(len(whole)):
        simulator.add_fault("R13", event=k, ending=ending, times=1)
        received = b""
        body = {"model": "gpt-5.4", "input": "hi", "stream": True}
        try:
            with http.stream("POST", "/v1/responses", json=body) as answer:
                for piece in answer.iter_raw():
                    received += piece
        except httpx.TransportError:
            assert ending != "clean"
        else:
            assert ending == "clean"
        assert received.count(b"event: ") == k
        assert b"response.completed" not in received
        assert b"[DONE]" not in received
        if k:
            response_id = json.loads(received.split(b"\n")[1][6:])["response"]["id"]
            assert http.get(f"/v1/responses/{response_id}").status_code == 404


def test_r13_a_stream_ends_after_any_number_of_bytes(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    for k in (0, 1, 100, 1000):
        simulator.add_fault("cut", byte=k, ending="clean", times=1)
        assert len(respond(http, "hi", stream=True).content) == k


def test_r13_a_cut_stream_may_still_send_its_terminal_event(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("cut", event=3, terminal=True, times=1)
    answer = respond(http, "hi", stream=True)
    events = events_of(answer)
    assert [event["type"] for event in events][3:] == ["response.completed"]
    assert "[DONE]" not in answer.text
    assert http.get(f"/v1/responses/{events[0]['response']['id']}").status_code == 200


def test_r14_a_response_is_incomplete(simulator: ProviderSimulator, http: httpx.Client) -> None:
    simulator.add_fault("R14", words=2)
    body = respond(http, "hi").json()
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert body["output"][-1]["content"][0]["text"] == "Messages seen: "
    events = events_of(respond(http, "hi", stream=True))
    assert events[-1]["type"] == "response.incomplete"


def test_r14_a_response_is_cancelled(simulator: ProviderSimulator, http: httpx.Client) -> None:
    simulator.add_fault("cancelled", event=4)
    assert respond(http, "hi").json()["status"] == "cancelled"
    events = events_of(respond(http, "hi", stream=True))
    assert len(events) == 5
    assert events[-1]["response"]["status"] == "cancelled"


def test_r14_a_response_stays_queued(simulator: ProviderSimulator, http: httpx.Client) -> None:
    simulator.add_fault("queued")
    made = respond(http, "hi", background=True).json()
    for _ in range(3):
        assert http.get(f"/v1/responses/{made['id']}").json()["status"] == "queued"
    body = {"model": "gpt-5.4", "input": "hi", "stream": True}
    with http.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(6)][::3] == [
            "event: response.created",
            "event: response.queued",
        ]
        (waiting,) = simulator.requests(stream="true")
        assert waiting.events_sent == 2
        simulator.release_all()
        assert not [line for line in lines if line.startswith("event")]


def test_r15_the_previous_response_is_accepted_and_ignored() -> None:
    with ProviderSimulator(profile="ignores-previous-id") as simulator:
        client = openai.OpenAI(base_url=simulator.base_url, api_key="k")
        with client:
            first = client.responses.create(model="local", input="my name is Ada")
            second = client.responses.create(
                model="local", input="who am I?", previous_response_id=first.id
            )
            assert second.output_text == "Messages seen: 1. Last text: who am I?"
            unknown = client.responses.create(
                model="local", input="who am I?", previous_response_id="resp_nobody"
            )
            assert unknown.status == "completed"


def test_r16_earlier_assistant_items_are_unlinked() -> None:
    told = {"unlink_models": ["gpt-5.[45]"]}
    kept, lost = ("gpt-5.2", "gpt-5.4")
    shapes = {}
    with ProviderSimulator(told) as simulator, client_of(simulator) as http:
        for model in (kept, lost):
            conversation = http.post("/v1/conversations", json={}).json()["id"]
            for text in ("one", "two", "three"):
                respond(http, text, model=model, conversation=conversation)
            path = f"/v1/conversations/{conversation}/items?order=asc"
            items = http.get(path).json()["data"]
            shapes[model] = "".join(item["role"][0] for item in items if "role" in item)
    assert shapes == {kept: "uauaua", lost: "uuua"}


@pytest.mark.parametrize("reason", ["unknown", "deleted", "expired", "forgotten"])
def test_r17_a_missing_conversation_is_not_found(reason: str) -> None:
    told = {"forget": {"after_seconds": 3600}}
    with ProviderSimulator(told) as simulator, client_of(simulator) as http:
        conversation = http.post("/v1/conversations", json={}).json()["id"]
        if reason == "unknown":
            conversation = "conv_unknown"
        elif reason == "deleted":
            http.delete(f"/v1/conversations/{conversation}")
        elif reason == "expired":
            simulator.advance_clock(4000)
        else:
            simulator.forget()
        expected = openai_error(f"Conversation with id '{conversation}' not found.", None, None)
        for answer in (
            http.get(f"/v1/conversations/{conversation}"),
            respond(http, "hi", conversation=conversation),
        ):
            assert (answer.status_code, answer.json()) == (404, expected)


TOOL_CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ],
}


def test_c01_tool_calls_need_tool_messages(http: httpx.Client) -> None:
    answer = chat(http, user("hi"), TOOL_CALLS, user("go on"))
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: call_1",
        "messages.[2].role",
        None,
    )


def test_c02_tool_messages_need_tool_calls(http: httpx.Client) -> None:
    answer = chat(http, user("hi"), {"role": "tool", "tool_call_id": "call_1", "content": "x"})
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        None,
        INVALID,
    )


def test_c03_tool_call_ids_have_40_characters_at_most(http: httpx.Client) -> None:
    long = json.loads(json.dumps(TOOL_CALLS).replace("call_1", "c" * 43))
    answer = chat(http, user("hi"), user("you"), long)
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum "
        "length 40, but got a string with length 43 instead.",
        "messages[2].tool_calls[0].id",
        "string_above_max_length",
    )


@pytest.mark.parametrize("kind", ["C04", "quota"])
def test_c04_an_exhausted_quota_has_no_retry_time(
    simulator: ProviderSimulator, http: httpx.Client, kind: str
) -> None:
    simulator.add_fault(kind)
    answer = chat(http, user("hi"))
    assert answer.status_code == 429
    assert "retry-after" not in answer.headers
    assert answer.json() == openai_error(
        "You exceeded your current quota, please check your plan and billing details. For more "
        "information on this error, read the docs: "
        "https://platform.openai.com/docs/guides/error-codes/api-errors.",
        None,
        "insufficient_quota",
        "insufficient_quota",
    )


def test_c05_a_rate_limit_has_a_retry_time(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("rate_limit", retry_after_seconds=7)
    answer = chat(http, user("hi"))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("tokens", None, "rate_limit_exceeded")
    assert re.fullmatch(
        r"Rate limit reached for gpt-4\.1 in organization \S+ on tokens per min \(TPM\): "
        r"Limit \d+, Used \d+, Requested \d+\. Please try again in 7s\.",
        error["message"],
    )


def test_c06_a_chat_stream_ends_within_the_arguments_of_a_call(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("C06")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = user('call f {"city": "Paris", "days": 3}')
    answer = chat(http, asked, tools=[tool], stream=True)
    chunks = events_of(answer)
    assert answer.status_code == 200
    assert len(chunks) == 3
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    piece = chunks[-1]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
    assert piece == '{"city":'
    assert "[DONE]" not in answer.text


def test_c07_a_router_names_the_context_limit() -> None:
    told = {"context_tokens": 32768}
    with ProviderSimulator(told, profile="chat-only") as simulator, client_of(simulator) as http:
        answer = chat(http, user("four" * (42832 - 3)))
    assert answer.status_code == 400
    assert answer.json() == openai_error(
        "This endpoint's maximum context length is 32768 tokens. However, you requested about "
        "42832 tokens (42832 of text input). Please reduce the length of either one, or use the "
        '"middle-out" transform to compress your prompt automatically.',
        None,
        None,
    )


def check_anthropic(answer: httpx.Response, message: str, kind: str = INVALID) -> None:
    body = answer.json()
    assert re.fullmatch("req_011C[0-9a-f]+", body.pop("request_id"))
    assert body == {"type": "error", "error": {"type": kind, "message": message}}


USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}


def says(role: str, *blocks: Json) -> Json:
    return {"role": role, "content": list(blocks)}


TEXT = {"type": "text", "text": "hello"}


def test_a01_tool_use_needs_its_result(http: httpx.Client) -> None:
    answer = claude(http, user("hi"), says("assistant", USE), user("go on"))
    assert answer.status_code == 400
    check_anthropic(
        answer,
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
        "toolu_1. Each `tool_use` block must have a corresponding `tool_result` block in the next "
        "message.",
    )


def test_a02_a_result_needs_its_tool_use(http: httpx.Client) -> None:
    answer = claude(http, user("hi"), says("assistant", TEXT), says("user", TEXT, RESULT))
    assert answer.status_code == 400
    check_anthropic(
        answer,
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. "
        "Each `tool_result` block must have a corresponding `tool_use` block in the previous "
        "message.",
    )


def test_a03_tool_use_ids_are_unique(http: httpx.Client) -> None:
    again = [says("assistant", TEXT, USE), says("user", RESULT)]
    answer = claude(http, user("hi"), says("assistant", USE), says("user", RESULT), *again)
    assert answer.status_code == 400
    check_anthropic(answer, "messages.3.content.1: `tool_use` ids must be unique")


def thought(http: httpx.Client) -> list[Json]:
    answer = claude(http, user("hi"), thinking={"type": "enabled", "budget_tokens": 1024})
    content: list[Json] = answer.json()["content"]
    assert content[0]["type"] == "thinking"
    return content


@pytest.mark.parametrize("how", ["missing", "of another account", "of another model"])
def test_a04_a_signature_is_valid_only_for_its_account_and_model(
    simulator: ProviderSimulator, http: httpx.Client, how: str
) -> None:
    content = thought(http)
    history = [user("hi"), says("assistant", *content), user("more")]
    assert claude(http, *history).status_code == 200
    if how == "missing":
        del content[0]["signature"]
    key = "sk-other" if how == "of another account" else "sk-a"
    model = "claude-opus-4-1" if how == "of another model" else "claude-sonnet-4-5"
    history[1] = says("assistant", *content)
    with client_of(simulator, key) as caller:
        answer = claude(caller, *history, model=model)
    assert answer.status_code == 400
    check_anthropic(answer, "messages.1.content.0: Invalid `signature` in `thinking` block")


def test_a05_the_latest_thinking_must_be_unchanged(http: httpx.Client) -> None:
    content = thought(http)
    content[0]["thinking"] += " And more."
    answer = claude(http, user("hi"), says("assistant", *content), user("more"))
    assert answer.status_code == 400
    check_anthropic(
        answer,
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant "
        "message cannot be modified. These blocks must remain as they were in the original "
        "response.",
    )


def test_a06_a_prompt_is_too_long(http: httpx.Client) -> None:
    answer = claude(http, user("four" * (200_251 - 3)))
    assert answer.status_code == 400
    check_anthropic(answer, "prompt is too long: 200251 tokens > 200000 maximum")


def test_a07_a_prompt_is_too_long_for_its_max_tokens() -> None:
    with ProviderSimulator({"context_tokens": 204648}) as simulator, client_of(simulator) as http:
        answer = claude(http, user("four" * (189_136 - 3)), max_tokens=20000)
    assert answer.status_code == 400
    check_anthropic(
        answer,
        "input length and `max_tokens` exceed context limit: 189136 + 20000 > 204648, decrease "
        "input length or `max_tokens` and try again",
    )


def test_a08_a_bad_image_is_not_processed(http: httpx.Client) -> None:
    def image(raw: bytes) -> Json:
        data = base64.b64encode(raw).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return says("user", {"type": "image", "source": source})

    assert claude(http, image(b"\x89PNG\r\n\x1a\n rest")).status_code == 200
    answer = claude(http, image(b"<html>not an image</html>"))
    assert answer.status_code == 400
    check_anthropic(answer, "Could not process image")


def test_a09_anthropic_is_overloaded_before_any_output(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("A09")
    answer = claude(http, user("hi"), stream=True)
    assert answer.status_code == 529
    check_anthropic(answer, "Overloaded", "overloaded_error")


def test_a10_anthropic_is_overloaded_in_mid_stream(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("A10", event=3)
    answer = claude(http, user("hi"), stream=True)
    assert answer.status_code == 200
    assert answer.text.count("event: ") == 4
    assert answer.text.endswith(
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
        '"message":"Overloaded"}}\n\n'
    )


def test_g01_an_invalid_thought_signature_is_refused_in_the_shape_of_gemini(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("G01")
    answer = chat(http, user("hi"))
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "code": 400,
            "message": "Unable to submit request because Thought signature is not valid.. Learn "
            "more: https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
            "status": "INVALID_ARGUMENT",
        }
    }


def test_g02_a_quota_says_how_long_to_wait(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("G02")
    answer = chat(http, user("hi"))
    assert answer.status_code == 429
    assert answer.json() == {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota, please check your plan and billing "
            "details. ...",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"}],
        }
    }


def test_l01_a_busy_conversation_is_refused_in_the_shape_of_letta(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    simulator.add_fault("L01")
    answer = chat(http, user("hi"))
    assert answer.status_code == 409
    assert answer.json() == {
        "detail": "Cannot send a new message: Another request is currently being processed "
        "for this conversation."
    }


def test_every_catalogue_fault_has_a_test_here() -> None:
    tested = {
        name.split("_")[1].upper() for name in globals() if re.match(r"test_[rcagl]\d\d_", name)
    }
    assert tested == set(CATALOGUE)


ERRORS = [fault for fault in CATALOGUE.values() if fault.shape != "behaviour"]


@pytest.mark.parametrize("listed", ERRORS, ids=lambda listed: listed.id)
@pytest.mark.parametrize("ask", [respond, chat, claude], ids=["responses", "chat", "messages"])
def test_every_catalogue_error_can_be_injected_into_any_call(
    simulator: ProviderSimulator, http: httpx.Client, listed: Any, ask: Callable[..., Any]
) -> None:
    simulator.add_fault(listed.id, times=1)
    given = "hi" if ask is respond else user("hi")
    answer = ask(http, given)
    assert answer.status_code == listed.status
    fixed = re.split(r"\{\w+\}", listed.message)
    text = json.dumps(answer.json(), ensure_ascii=False)
    for piece in fixed:
        assert json.dumps(piece)[1:-1] in text
    assert ask(http, given).status_code == 200
