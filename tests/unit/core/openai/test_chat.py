"""Messages of the Chat API as items, and back."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import InvalidInput
from holdfast.core.openai.chat import message_of, messages_of, split_messages

Json = dict[str, Any]
REASONING = {
    "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]
}  # fmt: skip


def items_of(*messages: Json) -> list[Json]:
    return split_messages(messages)[1]


def test_reasoning_of_an_assistant_message_is_an_item_before_it() -> None:
    reasoning, message = items_of(
        {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    )
    assert reasoning == REASONING
    assert message["content"][0]["text"] == "yes"


def test_readable_reasoning_is_part_of_the_answer() -> None:
    text = {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}
    message = message_of([msgspec.json.encode(item) for item in (REASONING, text)])
    assert message["reasoning_content"] == "hm"
    assert message["content"] == "yes"
    assert "reasoning_content" not in message_of([msgspec.json.encode(text)])


def test_names_of_participants_are_kept() -> None:
    [item] = items_of({"role": "user", "name": "ann", "content": "hi"})
    assert item["name"] == "ann"
    assert messages_of([item]) == [{"role": "user", "name": "ann", "content": "hi"}]


def test_a_legacy_call_and_its_output_are_a_pair() -> None:
    call, output = items_of(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    )
    assert call == {"type": "function_call", "call_id": "f", "name": "f", "arguments": "{}"}
    assert output == {"type": "function_call_output", "call_id": "f", "output": "1"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "name": 7, "content": "hi"},
        {"role": "assistant", "reasoning_content": ["hm"], "content": "hi"},
        {"role": "assistant", "function_call": "f"},
        {"role": "assistant", "function_call": {"arguments": "{}"}},
    ],
)
def test_fields_of_the_wrong_type_are_refused(message: Json) -> None:
    with pytest.raises(InvalidInput, match=r"messages\[0\]"):
        items_of(message)
