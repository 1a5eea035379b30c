"""The answers of the simulated model."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulator.apis.reply import ContextSummary, OfferedTool, compose, words_of
from holdfast.simulator.state.scenario import Script, ScriptedCall

WEATHER = OfferedTool(
    name="get_weather",
    schema={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["celsius", "kelvin"]},
        },
        "required": ["city", "days", "unit"],
    },
)


def seen(text: str, *, ends_with_output: bool = False) -> ContextSummary:
    return ContextSummary(messages=2, last_text=text, ends_with_output=ends_with_output)


def test_the_default_answer_describes_the_input() -> None:
    reply = compose(seen("hello"), [WEATHER], None, None)
    assert (reply.text, reply.calls) == ("Messages seen: 2. Last text: hello", ())


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('please call get_weather {"city": "Paris"} now', [{"city": "Paris"}]),
        ("call get_weather", [{"city": "text", "days": 1, "unit": "celsius"}]),
        ("call get_weather {broken", [{"city": "text", "days": 1, "unit": "celsius"}]),
        ('call get_weather {"a": {"b": "}"}} then call get_weather {}', [{"a": {"b": "}"}}, {}]),
        ("call somebody", []),
        ("recall get_weather", []),
    ],
)
def test_a_message_asks_for_calls(text: str, arguments: list[object]) -> None:
    reply = compose(seen(text), [WEATHER], None, None)
    assert [json.loads(call.arguments) for call in reply.calls] == arguments


def test_an_output_is_answered_with_text_even_when_calls_are_forced() -> None:
    reply = compose(seen("call get_weather", ends_with_output=True), [WEATHER], "*", None)
    assert reply.calls == ()


@pytest.mark.parametrize(("forced", "count"), [("*", 1), ("get_weather", 1), ("other", 0)])
def test_a_choice_forces_a_call(forced: str, count: int) -> None:
    assert len(compose(seen("hello"), [WEATHER], forced, None).calls) == count


def test_a_script_has_precedence() -> None:
    script = Script(text="Yes.", tool_calls=[ScriptedCall("f", {"a": 1}), ScriptedCall("g", "raw")])
    reply = compose(seen("call get_weather"), [WEATHER], "*", script)
    assert reply.text == "Yes."
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("f", '{"a": 1}'),
        ("g", "raw"),
    ]
    assert len(compose(seen("x"), [], None, Script(words=7)).text.split()) == 7


@given(st.text())
def test_the_pieces_of_a_stream_join_to_the_text(text: str) -> None:
    assert "".join(words_of(text)) == text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text"),
        ({"type": ["integer", "null"]}, 1),
        ({"const": "celsius"}, "celsius"),
        ({"$ref": "#/$defs/Unit"}, "kelvin"),
        ({"$ref": "#/$defs/Node"}, {"next": {}}),
        ({"allOf": [{"$ref": "#/$defs/Unit"}]}, "kelvin"),
    ],
)
def test_generated_arguments_match_their_schema(schema: object, value: object) -> None:
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}},
        "required": ["next"],
    }
    whole = {
        "type": "object",
        "properties": {"given": schema},
        "required": ["given"],
        "$defs": {"Unit": {"enum": ["kelvin"]}, "Node": node},
    }
    reply = compose(seen("hi"), [OfferedTool(name="f", schema=whole)], "*", None)
    assert json.loads(reply.calls[0].arguments) == {"given": value}
