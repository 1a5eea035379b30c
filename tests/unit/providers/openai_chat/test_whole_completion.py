"""Whole completions of one text are read in one step, and exactly as all others are."""

from typing import Any

import msgspec
import pytest

from holdfast.core.model.items import read_item
from holdfast.core.openai.chat import plain_text
from holdfast.ports.provider import Answer
from holdfast.providers.items.ids import IdAllocator
from holdfast.providers.openai_chat.output import ChatOutput
from holdfast.providers.openai_chat.whole_completion import read_text_completion

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def _new_id(prefix: str) -> str:
    return f"{prefix}_0123456789abcdef"


def _completion(message: dict[str, Any] | None = None, **fields: Any) -> bytes:
    choice = {
        "index": 0,
        "finish_reason": fields.pop("finish_reason", "stop"),
        "message": {"role": "assistant", "content": "Sunny."} | (message or {}),
    }
    choice |= fields.pop("choice", {})
    return msgspec.json.encode({"choices": [choice], **fields})


def _read_generally(data: bytes) -> Answer:
    output = ChatOutput(IdAllocator(_new_id))
    output.read(msgspec.json.decode(data))
    return output.end()[1]


@pytest.mark.parametrize(
    "data",
    [
        _completion(),
        _completion(usage=USAGE),
        _completion(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 4, "audio": 1}}),
        _completion(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": True}}),
        _completion(usage={"prompt_tokens": 7, "completion_tokens": 3}),
        _completion(usage=USAGE | {"completion_tokens_details": {"reasoning_tokens": 2}}),
        _completion(service_tier="flex", usage=None),
        _completion({"refusal": None, "annotations": [], "tool_calls": []}),
        _completion({"content": "ümläut \u2603"}),
        _completion({"content": " a\r\nb \0 e\u0301 "}),
    ],
)
def test_a_text_is_read_as_it_is_read_from_chunks(data: bytes) -> None:
    answer = read_text_completion(data, _new_id)
    assert answer is not None
    assert answer == _read_generally(data)
    # The one item is read, as the log and the clients read it.
    assert answer.plain is not None
    assert [answer.plain.item] == [read_item(body) for body in answer.items]
    assert answer.plain.text == plain_text(answer.items)


@pytest.mark.parametrize(
    "data",
    [
        _completion({"content": ""}),
        _completion({"content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}),
        _completion({"refusal": "No."}),
        _completion({"reasoning_content": "Hm."}),
        _completion({"annotations": [{"type": "url_citation"}]}),
        _completion(finish_reason="length"),
        _completion(choice={"index": 1}),
        _completion(choice={"logprobs": {"content": []}}),
        _completion(error={"message": "broken"}),
        _completion(usage={"prompt_tokens": "many"}),
        b"[]",
        b"\xff",
    ],
)
def test_anything_else_is_left_to_the_general_reader(data: bytes) -> None:
    assert read_text_completion(data, _new_id) is None
