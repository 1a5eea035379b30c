"""Messages of the Chat API as items, and back."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import InvalidInput, UnsupportedByUpstream
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


IMAGE = {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}}
FILE = {"type": "file", "file": {"file_id": "file_1"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
TEXT = {"type": "text", "text": "look"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "ls"}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "name": "ada", "content": [TEXT, IMAGE, FILE, AUDIO]}],
        [{"role": "assistant", "content": "", "refusal": "I will not."}],
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
            {"role": "tool", "tool_call_id": "call_2", "content": "a.txt"},
        ],
        [
            {"role": "assistant", "content": "one moment", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
            {"role": "assistant", "content": "there it is"},
        ],
    ],
    ids=["text", "parts", "refusal", "calls", "text and calls"],
)
def test_messages_are_the_same_after_becoming_items(messages: list[Json]) -> None:
    assert messages_of(items_of(*messages)) == messages


def test_text_parts_are_one_text() -> None:
    said = {"role": "user", "content": [TEXT, TEXT]}
    assert messages_of(items_of(said)) == [{"role": "user", "content": "look\nlook"}]
    output = {"type": "function_call_output", "call_id": "c", "output": [TEXT, TEXT]}
    assert messages_of([output])[0]["content"] == "looklook"
    pictured = {**output, "output": [{"type": "input_image", "image_url": "https://x.test/b.png"}]}
    image = {"type": "image_url", "image_url": {"url": "https://x.test/b.png"}}
    assert messages_of([pictured])[0]["content"] == [image]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call"},
        {"type": "message", "role": "user", "content": [{"type": "input_image"}]},
        {"type": "message", "role": "user", "content": [{"type": "hologram"}]},
    ],
    ids=["item", "image without address", "part"],
)
def test_what_chat_cannot_express_is_refused(item: Json) -> None:
    with pytest.raises(UnsupportedByUpstream, match="a Chat server"):
        messages_of([item])


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user"}, "has no content"),
        ({"role": "user", "content": ["text"]}, "not an object"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "without text"),
        ({"role": "user", "content": [{"type": "file", "file": "x"}]}, "file that is not an obj"),
        ({"role": "user", "content": [{"type": 1}]}, "type is not text"),
        ({"role": "assistant", "content": 5}, "neither text nor parts"),
        ({"role": "assistant", "refusal": 5}, "refusal that is not text"),
        ({"role": "assistant", "tool_calls": "x"}, "must be a list"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "no function name"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 1}]}, "has no id"),
        ({"role": "tool", "content": "x"}, "needs a tool_call_id"),
        ({"role": "narrator", "content": "x"}, "unknown role 'narrator'"),
        ({"content": "x"}, "needs a role"),
    ],
    ids=str,
)
def test_a_message_that_cannot_be_read_is_refused_with_its_place(
    message: Json, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"messages\[0\].*{complaint}"):
        items_of(message)
