"""Tools of the Responses API on Chat servers: namespaces and hosted tools."""

from typing import Any

import msgspec
import pytest

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.providers.items.ids import MAX_TOOL_NAME, flat_tool_name
from holdfast.providers.openai_chat.messages import translate
from holdfast.providers.openai_chat.params import dropped_tools, to_chat_params

Json = dict[str, Any]
NAMESPACE = {
    "type": "namespace", "name": "mcp__files__", "description": "Files.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
}  # fmt: skip
SEARCH = {"type": "web_search", "search_context_size": "low"}
FUNCTION = {"type": "function", "name": "shell", "parameters": {}, "strict": False}


def raw(fields: Json) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def test_a_namespace_becomes_its_functions() -> None:
    found = to_chat_params(raw({"tools": [FUNCTION, NAMESPACE]}), "m", "u")
    names = [tool["function"]["name"] for tool in found.params["tools"]]
    assert names == ["shell", "mcp__files__read"]
    tool = found.tool_names["mcp__files__read"]
    assert (tool.namespace, tool.name) == ("mcp__files__", "read")


def test_a_choice_within_a_namespace_names_the_function() -> None:
    choice = {"type": "function", "namespace": "mcp__files__", "name": "read"}
    found = to_chat_params(raw({"tools": [NAMESPACE], "tool_choice": choice}), "m", "u")
    assert found.params["tool_choice"]["function"]["name"] == "mcp__files__read"


def test_a_call_of_the_history_has_the_name_of_its_function() -> None:
    item = {"type": "function_call", "call_id": "c", "namespace": "mcp__files__", "name": "read",
            "arguments": "{}"}  # fmt: skip
    message = translate(item, "input[0]", "u", is_strict=True)
    assert message is not None
    assert message["tool_calls"][0]["function"]["name"] == "mcp__files__read"


def test_flat_names_are_short_and_distinct() -> None:
    long = [flat_tool_name("n" * 60, f"{'t' * 60}{number}") for number in range(3)]
    assert len(set(long)) == 3
    assert all(len(name) <= MAX_TOOL_NAME for name in long)
    assert flat_tool_name("a b", "c") != flat_tool_name("a_b", "c")
    assert flat_tool_name(None, "plain") == "plain"


def test_hosted_tools_are_dropped() -> None:
    found = to_chat_params(raw({"tools": [SEARCH, FUNCTION, SEARCH]}), "m", "u")
    assert [tool["function"]["name"] for tool in found.params["tools"]] == ["shell"]
    assert dropped_tools(raw({"t": [SEARCH, FUNCTION, SEARCH]})["t"], "u") == ("web_search",)
    assert to_chat_params(raw({"tools": [SEARCH]}), "m", "u").params == {}


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    ],
)
def test_a_hosted_tool_that_the_request_insists_on_is_refused(choice: Any) -> None:
    with pytest.raises(UnsupportedByUpstream) as caught:
        to_chat_params(raw({"tools": [SEARCH], "tool_choice": choice}), "m", "u")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("tool", [{"name": "f"}, {"type": "a\r\nb: c"}, {"type": ""}, 7])
def test_a_tool_without_a_valid_type_is_refused(tool: Any) -> None:
    with pytest.raises(UnsupportedByUpstream) as caught:
        to_chat_params(raw({"tools": [tool]}), "m", "u")
    assert caught.value.param == "tools[0].type"


@pytest.mark.parametrize(
    "group",
    [{"type": "namespace", "tools": []}, {"type": "namespace", "name": "n", "tools": [7]},
     {"type": "namespace", "name": "n"}],
)  # fmt: skip
def test_a_malformed_namespace_is_refused(group: Any) -> None:
    with pytest.raises(UnsupportedByUpstream):
        to_chat_params(raw({"tools": [group]}), "m", "u")
