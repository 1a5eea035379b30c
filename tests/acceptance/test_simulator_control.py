"""The record, the seed, the profiles and the control API of the simulator."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from holdfast.testing.simulator.provider import (
    ProviderSimulator,
    SimulatorError,
    provider_simulator,
)

__all__ = ["provider_simulator"]

BODY = {"model": "gpt-5.4", "input": "hello"}


def client_of(simulator: ProviderSimulator, key: str = "sk-a") -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=simulator.url, headers=headers, timeout=60)


@pytest.fixture(name="http")
def _http(provider_simulator: ProviderSimulator) -> Iterator[httpx.Client]:
    with client_of(provider_simulator) as client:
        yield client


def text_of(answer: httpx.Response) -> str:
    said = answer.json()["output"][-1]["content"][0]["text"]
    assert isinstance(said, str)
    return said


def talk(simulator: ProviderSimulator) -> str:
    """Hold a conversation of every kind and return the record of it."""
    with openai.OpenAI(base_url=simulator.base_url, api_key="sk-a", max_retries=1) as client:
        first = client.responses.create(model="gpt-5.4", input="one")
        client.responses.create(model="gpt-5.4", input="two", previous_response_id=first.id)
        conversation = client.conversations.create()
        for text in ("three", "four", "five", "six"):
            list(
                client.responses.create(
                    model="gpt-5.4", input=text, conversation=conversation.id, stream=True
                )
            )
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    return simulator.record_jsonl()


CHANCES = [{"kind": "error", "status": 500, "chance": 0.3, "retry_after_seconds": 0.001}]


def test_the_same_seed_gives_the_same_record() -> None:
    records = []
    for seed in (7, 7, 8):
        with ProviderSimulator({"fault": CHANCES}, seed=seed) as simulator:
            try:
                records.append(talk(simulator))
            except openai.InternalServerError:
                records.append(simulator.record_jsonl())
    assert records[0] == records[1]
    assert records[0] != records[2]
    assert records[0].count("\n") >= 8


def test_the_record_has_the_input_of_the_model(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    http.post("/v1/responses", json=BODY | {"unknown": [1]}, headers={"x-session": "s1"})
    http.post("/v1/responses", json=BODY | {"model": "other"})
    http.get("/v1/models?limit=3")
    (first,) = provider_simulator.requests(model="gpt-5*")
    assert first.body == BODY | {"unknown": [1]}
    assert first.headers["x-session"] == "s1"
    assert first.account == "sk-a"
    assert first.status == 200
    (models,) = provider_simulator.requests(api="models")
    assert models.query == {"limit": "3"}
    assert len(provider_simulator.requests(after=first.number)) == 2
    provider_simulator.clear_record()
    assert provider_simulator.requests() == []


def test_requests_without_a_route_are_recorded(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    missing = http.post("/v1/nowhere", json={})
    assert (missing.status_code, missing.json()["error"]["message"]) == (
        404,
        "Invalid URL (POST /v1/nowhere)",
    )
    assert http.get("/v1/chat/completions/").status_code == 200
    wrong = http.delete("/v1/responses")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["message"].startswith("Not allowed to DELETE on /v1/responses.")
    assert [r.api for r in provider_simulator.requests()] == ["unknown", "chat", "unknown"]


def test_bodies_that_are_not_json_are_refused(http: httpx.Client) -> None:
    for raw in (b"{", b"[1]", b"\xff\xfe", b'"x"'):
        answer = http.post("/v1/responses", content=raw)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("We could not parse the JSON body")


def test_keys_are_needed_and_may_be_listed() -> None:
    with ProviderSimulator({"keys": ["sk-good"]}) as simulator:
        url = f"{simulator.base_url}/responses"
        nobody = httpx.post(url, json=BODY)
        assert nobody.status_code == 401
        assert nobody.json()["error"]["message"].startswith("You didn't provide an API key.")
        with client_of(simulator, "sk-bad-one-1234") as http:
            wrong = http.post("/v1/responses", json=BODY)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        with client_of(simulator, "sk-good") as http:
            assert http.post("/v1/responses", json=BODY).status_code == 200


def test_one_account_sees_nothing_of_another(provider_simulator: ProviderSimulator) -> None:
    with client_of(provider_simulator) as mine, client_of(provider_simulator, "sk-b") as yours:
        response = mine.post("/v1/responses", json=BODY).json()["id"]
        conversation = mine.post("/v1/conversations", json={}).json()["id"]
        for path in (f"/v1/responses/{response}", f"/v1/conversations/{conversation}"):
            assert mine.get(path).status_code == 200
            assert yours.get(path).status_code == 404


def test_a_header_adds_a_fault_to_a_single_call(http: httpx.Client) -> None:
    def ask(fault: str) -> httpx.Response:
        return http.post("/v1/responses", json=BODY, headers={"x-sim-fault": fault})

    assert ask("R08").json()["error"]["code"] == "conversation_locked"
    assert ask('{"kind": "error", "status": 502}').status_code == 502
    wrong = ask("nonsense")
    assert wrong.status_code == 400
    assert wrong.json()["error"]["code"] == "invalid_simulator_input"
    assert http.post("/v1/responses", json=BODY).status_code == 200


def test_stored_state_expires_by_request_by_age_and_by_chance() -> None:
    told = {"forget": {"after_seconds": 86_400, "chance": 0.5}}
    with ProviderSimulator(told, seed=7) as simulator, client_of(simulator) as http:
        ids = [http.post("/v1/responses", json=BODY).json()["id"] for _ in range(20)]
        found = [http.get(f"/v1/responses/{each}").status_code for each in ids]
        assert 0 < found.count(404) < 20
        kept = [each for each, status in zip(ids, found, strict=True) if status == 200]
        assert simulator.forget(kept[0]) == 1
        assert http.get(f"/v1/responses/{kept[0]}").status_code == 404
        assert http.get(f"/v1/responses/{kept[1]}").status_code == 200
        simulator.advance_clock(90_000)
        assert http.get(f"/v1/responses/{kept[1]}").status_code == 404
        fresh = http.post("/v1/responses", json=BODY).json()["id"]
        assert simulator.forget(account="sk-nobody") == 0
        assert simulator.forget() > 0
        assert http.get(f"/v1/responses/{fresh}").status_code == 404


def test_a_response_may_not_be_stored_at_all(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    provider_simulator.add_fault("forget", times=1)
    made = http.post("/v1/responses", json=BODY).json()
    assert http.get(f"/v1/responses/{made['id']}").status_code == 404


def test_answers_are_scripted_and_long(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    provider_simulator.add_answer("Bonjour.", when={"text": "french"}, times=1)
    provider_simulator.add_answer(words=500, when={"text": "long"})
    provider_simulator.add_answer(refusal="I will not.", when={"text": "evil"})
    assert text_of(http.post("/v1/responses", json=BODY | {"input": "french"})) == "Bonjour."
    again = text_of(http.post("/v1/responses", json=BODY | {"input": "french"}))
    assert again == "Messages seen: 1. Last text: french"
    stream = http.post("/v1/responses", json=BODY | {"input": "long", "stream": True})
    assert stream.text.count("event: response.output_text.delta") == 500
    refusal = http.post("/v1/responses", json=BODY | {"input": "evil"}).json()
    assert refusal["output"][-1]["content"][0] == {"type": "refusal", "refusal": "I will not."}


def test_chunks_are_duplicated_and_calls_share_an_id(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    provider_simulator.add_fault("duplicate_chunks")
    provider_simulator.add_fault("constant_call_ids")
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    body = BODY | {"input": "call f then call f", "tools": [tool], "stream": True}
    lines = http.post("/v1/responses", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert deltas[0] == deltas[1]
    calls = [i for i in events[-1]["response"]["output"] if i["type"] == "function_call"]
    assert [call["call_id"] for call in calls] == ["call_1", "call_1"]


def test_a_slow_stream_arrives_whole(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    whole = http.post("/v1/responses", json=BODY | {"stream": True}).text
    provider_simulator.add_fault("slow", before_seconds=0.05, between_seconds=0.01)
    began = time.monotonic()
    slow = http.post("/v1/responses", json=BODY | {"stream": True}).text
    pauses = slow.count("\n\n") - 1
    assert time.monotonic() - began >= 0.05 + pauses * 0.01
    assert slow.count("\n\n") == whole.count("\n\n")
    assert slow.endswith("data: [DONE]\n\n")


def test_a_body_may_be_cut_too(provider_simulator: ProviderSimulator, http: httpx.Client) -> None:
    provider_simulator.add_fault("cut", byte=10, times=1)
    assert http.post("/v1/responses", json=BODY).content == b'{"id":"res'
    provider_simulator.add_fault("cut", byte=10, ending="eof", times=1)
    with pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/responses", json=BODY)


@pytest.mark.parametrize(
    ("profile", "served", "refused"),
    [
        ("chat-only", "/v1/chat/completions", "/v1/responses"),
        ("anthropic", "/v1/messages", "/v1/chat/completions"),
        ("ignores-previous-id", "/v1/responses", "/v1/conversations"),
        ("azure-like", "/openai/v1/responses", "/v1/messages"),
    ],
)
def test_profiles_serve_the_apis_of_their_originals(
    profile: str, served: str, refused: str
) -> None:
    body: dict[str, Any] = BODY | {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
    }
    with ProviderSimulator(profile=profile) as simulator:
        headers = {"api-key": "k"}
        assert httpx.post(simulator.url + served, json=body, headers=headers).status_code == 200
        assert httpx.post(simulator.url + refused, json=body, headers=headers).status_code == 404


def test_an_azure_like_server_keeps_state_per_deployment() -> None:
    with ProviderSimulator(profile="azure-like") as simulator:
        headers = {"api-key": "k"}
        url = f"{simulator.url}/openai/responses?api-version=preview"
        made = httpx.post(url, json=BODY, headers=headers).json()["id"]
        follow = {"input": "more", "previous_response_id": made}
        same = httpx.post(url, json=follow | {"model": "gpt-5.4"}, headers=headers)
        other = httpx.post(url, json=follow | {"model": "gpt-5.2"}, headers=headers)
        assert (same.status_code, other.status_code) == (200, 400)
        chat = httpx.post(
            f"{simulator.url}/openai/deployments/gpt-5.4/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}]},
            headers=headers,
        ).json()
        assert chat["model"] == "gpt-5.4"
        assert "content_filter_results" in chat["choices"][0]


def test_strict_alternation_refuses_two_messages_of_one_role() -> None:
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with ProviderSimulator(profile="strict-alternation") as simulator:
        chat = httpx.post(
            f"{simulator.base_url}/chat/completions", json={"model": "m", "messages": twice}
        )
        assert chat.status_code == 400
        assert chat.json()["error"]["message"] == (
            "Conversation roles must alternate user/assistant/user/assistant/..."
        )
        claude = httpx.post(
            f"{simulator.base_url}/messages",
            json={"model": "m", "max_tokens": 5, "messages": twice},
        )
        assert claude.json()["error"]["message"] == (
            'messages: roles must alternate between "user" and "assistant", but found multiple '
            '"user" roles in a row'
        )


def test_anthropic_streams_every_kind_of_block(http: httpx.Client) -> None:
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": 'call f {"city": "Paris"}'}],
    }
    answer = http.post("/v1/messages?beta=true", json=body)
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-2:] == ["message_delta", "message_stop"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:5] == "data:"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    kinds = {delta["type"] for delta in deltas}
    assert kinds == {"thinking_delta", "signature_delta", "input_json_delta"}
    joined = "".join(d["partial_json"] for d in deltas if d["type"] == "input_json_delta")
    assert json.loads(joined) == {"city": "Paris"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    counted = http.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] > 5
    missing = http.post("/v1/messages", json={"model": "m", "messages": []})
    assert missing.json()["error"]["message"] == "max_tokens: Field required"


def test_system_messages_in_mid_conversation_need_the_beta_header(
    http: httpx.Client,
) -> None:
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
            {"role": "user", "content": "and?"},
            {"role": "system", "content": "be short"},
        ],
    }
    beta = {"anthropic-beta": "context-1m-2025-08-07,mid-conversation-system-2026-04-07"}
    heard = http.post("/v1/messages", json=body, headers=beta).json()
    assert heard["content"][0]["text"] == "Messages seen: 2. Last text: and?"
    refused = http.post("/v1/messages", json=body).json()
    assert refused["error"]["message"] == ("messages.2.role: Input should be 'user' or 'assistant'")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/faults", {"kind": "nope"}, 400, "fault: Invalid value 'nope'"),
        ("POST", "/faults", {}, 400, "missing required field `kind`"),
        ("POST", "/faults", {"kind": "cut", "x": 1}, 400, "unknown field `x`"),
        ("POST", "/barriers", {"at": "dawn"}, 400, "Invalid enum value 'dawn'"),
        ("GET", "/barriers/none", None, 404, "no barrier 'none'"),
        ("DELETE", "/faults/fault-9", None, 404, "no fault 'fault-9'"),
        ("POST", "/clock", {"advance_seconds": "x"}, 400, "Expected `int`"),
        ("POST", "/nothing", {}, 404, "no control endpoint POST /_sim/nothing"),
        ("GET", "/record?colour=red", None, 400, "unknown field `colour`"),
        ("GET", "/record?after=x", None, 400, "after: expected a number from 0 on, got 'x'"),
        ("PUT", "/record", None, 405, "the record cannot be changed with PUT"),
        ("POST", "/faults", {"kind": "error", "status": 99999}, 400, "`int` <= 599"),
        ("POST", "/faults", {"kind": "error", "headers": {"a": "b\nc"}}, 400, "matching regex"),
        ("POST", "/faults", {"kind": "cut", "event": -1}, 400, "`int` >= 0"),
        ("POST", "/faults", {"kind": "listed", "id": "ZZ"}, 400, "Invalid value 'ZZ'"),
        ("POST", "/faults", {"kind": "cut", "when": {"every": 0}}, 400, "`int` >= 1"),
        ("POST", "/barriers", {"name": "a/b"}, 400, "matching regex"),
        ("GET", "/record?after=nan", None, 400, "expected a number from 0 on"),
        ("POST", "/listening", {}, 400, "missing required field `open`"),
        ("POST", "/connections", {"connections": "all"}, 400, "Expected `int`"),
    ],
)
def test_invalid_control_input_gets_one_clear_line(
    provider_simulator: ProviderSimulator,
    method: str,
    path: str,
    body: Any,
    status: int,
    said: str,
) -> None:
    answer = httpx.request(method, f"{provider_simulator.url}/_sim{path}", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_reset_returns_to_the_initial_state(
    provider_simulator: ProviderSimulator, http: httpx.Client
) -> None:
    first = http.post("/v1/responses", json=BODY).json()
    rule = provider_simulator.add_fault("C04")
    provider_simulator.remove_fault(rule)
    provider_simulator.add_fault("C04")
    provider_simulator.reset()
    assert http.post("/v1/responses", json=BODY).json() == first
    provider_simulator.add_fault("C04")
    provider_simulator.clear_faults()
    assert http.post("/v1/responses", json=BODY).status_code == 200
    with pytest.raises(SimulatorError, match="no fault"):
        provider_simulator.remove_fault("fault-9")


def test_a_deeply_nested_body_is_refused(http: httpx.Client) -> None:
    for depth in (300, 900, 100_000):
        raw = b'{"model":"m","input":' + b'[{"type":"x","a":' * depth + b"1" + b"}]" * depth + b"}"
        assert http.post("/v1/responses", content=raw).status_code in (200, 400)


WEIRD: list[Any] = [None, 0, -1, 1.5, True, "", "x", [], {}, [None], [{}], [[]], {"a": None}]
FIELDS = {
    "/v1/responses": [
        "model",
        "input",
        "tools",
        "tool_choice",
        "conversation",
        "reasoning",
        "previous_response_id",
        "include",
        "instructions",
        "metadata",
        "max_output_tokens",
    ],
    "/v1/chat/completions": ["model", "messages", "tools", "tool_choice", "stream_options"],
    "/v1/messages": ["model", "messages", "system", "tools", "thinking", "max_tokens"],
    "/v1/conversations": ["items", "metadata"],
}


@pytest.mark.parametrize("path", FIELDS)
def test_no_value_of_any_type_breaks_the_server(http: httpx.Client, path: str) -> None:
    good = BODY | {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
    }
    for name in FIELDS[path]:
        for weird in WEIRD:
            for stream in (False, True):
                answer = http.post(path, json=good | {name: weird, "stream": stream})
                assert answer.status_code in (200, 400, 404, 422), (name, weird, answer.text)
                assert "unexpected type" not in answer.text, (name, weird, answer.text)
