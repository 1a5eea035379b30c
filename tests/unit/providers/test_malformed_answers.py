"""Malformed answers give a valid answer or a failure, never an exception of ours."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import item_value, read_item
from holdfast.ports.provider import Answer
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.items.seal_owner import SealOwner
from holdfast.providers.openai_chat.output import ChatOutput
from holdfast.providers.openai_responses.output import ResponsesOutput

Json = dict[str, Any]
ODD = [None, "", "x", 0, 5, -1, 1.5, True, [], {}, [None], [5], ["x"], {"a": 1}, [{"text": None}]]
PART = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
ITEMS: list[Json] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [PART, {"type": "refusal", "refusal": "no"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "id": "c_1", "call_id": "call_2", "name": "g", "input": "x"},
]  # fmt: skip
USAGE = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
         "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3}  # fmt: skip
RESPONSE: Json = {"id": "r", "status": "completed", "output": ITEMS, "usage": USAGE, "error": None,
                  "incomplete_details": None, "service_tier": "default"}  # fmt: skip
AT = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
EVENTS: list[Json] = [
    {"type": "response.created", "response": {"id": "r"}, "sequence_number": 0},
    {"type": "response.output_item.added", "output_index": 0, "item": {**ITEMS[1], "content": []}},
    {"type": "response.content_part.added", **AT, "part": {"type": "output_text", "text": ""}},
    {"type": "response.output_text.delta", **AT, "delta": "hel", "sequence_number": 3},
    {"type": "response.output_text.done", **AT, "text": "hello"},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEMS[1]},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "y",
     "delta": "{}"},
    {"type": "response.completed", "response": RESPONSE},
]  # fmt: skip
CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3,
              "prompt_tokens_details": {"cached_tokens": 0}}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COMPLETION: Json = {
    "id": "c", "usage": CHAT_USAGE, "service_tier": "default",
    "choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": []},
                 "message": {"role": "assistant", "content": "hello", "refusal": None,
                             "reasoning_content": "hm", "tool_calls": [CALL],
                             "annotations": [{"type": "url_citation", "url_citation": {}}]}}],
}  # fmt: skip
CHUNKS: list[Json] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL}]}}]},
    {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "!"}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": CHAT_USAGE},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in list(inside):
        yield (*path, name)
        if isinstance(one, dict | list):
            yield from places(one, (*path, name))


def with_value(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    """Return a copy with another value at one path, or without the value."""
    found = made = copy.deepcopy(value)
    for name in path[:-1]:
        found = found[name]
    if put is path:
        del found[path[-1]]
    else:
        found[path[-1]] = put
    return made


def malformed_variants(value: Any) -> Iterator[Any]:
    """Yield a value with every malformed value at every path, and with every path removed."""
    for path in places(value):
        for put in [path, *ODD]:
            yield with_value(value, path, put)


def names() -> IdAllocator:
    count = iter(range(10_000))
    return IdAllocator(lambda prefix: f"{prefix}_{next(count):016}")


def check(answer: Answer) -> None:
    """Check that any client of these APIs can read an answer."""
    for body in answer.items:
        read_item(body)
        value = item_value(body)
        assert isinstance(value["type"], str)
        assert isinstance(value["id"], str)
        match value["type"]:
            case "message":
                assert isinstance(value["role"], str)
                assert isinstance(value["content"], list)
                for part in value["content"]:
                    assert isinstance(part["type"], str)
                    if part["type"] in ("output_text", "refusal"):
                        field = "text" if part["type"] == "output_text" else "refusal"
                        assert isinstance(part[field], str)
            case "function_call":
                assert isinstance(value["arguments"], str)
                assert isinstance(value["name"], str)
                assert isinstance(value["call_id"], str)
            case "custom_tool_call":
                assert isinstance(value["input"], str)
            case "reasoning":
                assert isinstance(value["summary"], list)
            case _:
                pass
    assert answer.usage is None or isinstance(answer.usage.input_tokens, int)


def of_response(value: Any) -> Answer:
    output = ResponsesOutput(names(), SealOwner("p", "a", "m"))
    return output.whole(msgspec.json.encode(value)).answer


def of_events(events: Any) -> Answer | None:
    output = ResponsesOutput(names(), SealOwner("p", "a", "m"))
    for event in events:
        for told in output.read("", msgspec.json.encode(event)):
            data = getattr(told, "data", {})
            assert isinstance(data.get("delta", ""), str)
        if output.finished is not None:
            return output.finished.answer
    return None


def of_completion(value: Any) -> Answer:
    output = ChatOutput(names())
    if not isinstance(value, dict):
        raise ProviderFailure("no object", failure_class="transient")
    output.read(value)
    return output.end()[1]


def of_chunks(chunks: Any) -> Answer:
    output = ChatOutput(names())
    for chunk in chunks:
        output.read_chunk(msgspec.json.encode(chunk))
    return output.end()[1]


WAYS: dict[str, tuple[Any, Any]] = {
    "response": (of_response, RESPONSE),
    "events": (of_events, EVENTS),
    "completion": (of_completion, COMPLETION),
    "chunks": (of_chunks, CHUNKS),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_malformed_value_anywhere_is_repaired_or_refused(way: str) -> None:
    read, good = WAYS[way]
    assert read(good) is not None
    ways = list(malformed_variants(good))
    # One oddity in every place, and a sample of two at once.
    chosen = random.Random(7)
    pairs = [next(_another(one, chosen)) for one in chosen.sample(ways, 300)]
    answered = 0
    for value in (*ways, *pairs):
        try:
            answer = read(value)
        except ProviderFailure:
            continue
        except Exception as exc:
            raise AssertionError(f"{value}: {exc!r}") from exc
        if answer is not None:
            check(answer)
            answered += 1
    assert answered > 300


def _another(value: Any, chosen: random.Random) -> Iterator[Any]:
    ways = list(places(value))
    yield with_value(value, chosen.choice(ways), chosen.choice(ODD))
