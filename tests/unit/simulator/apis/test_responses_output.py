"""The fields of a request that a response repeats."""

from holdfast.simulator.apis.responses_output import echoed_fields


def test_a_tool_is_repeated_with_all_fields() -> None:
    tool = {"type": "function", "name": "f", "strict": None}
    [echoed] = echoed_fields({"tools": [tool]})["tools"]
    assert echoed == {
        "type": "function", "name": "f", "description": None, "parameters": None, "strict": True,
    }  # fmt: skip
    hosted = {"type": "web_search"}
    assert echoed_fields({"tools": [hosted]})["tools"] == [hosted]


def test_nested_objects_are_complete() -> None:
    echoed = echoed_fields({"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}})
    assert echoed["reasoning"] == {"effort": "low", "summary": None}
    assert echoed["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    form = {"type": "json_schema", "name": "n", "schema": {}}
    echoed = echoed_fields({"text": {"format": form}})
    assert echoed["text"]["format"] == {**form, "description": None, "strict": False}


def test_null_means_the_default() -> None:
    assert echoed_fields({"tools": None, "temperature": None, "text": None}) == {}
    echoed = echoed_fields({"text": {"format": None}, "reasoning": {"summary": None}})
    assert echoed["text"]["format"] == {"type": "text"}
    assert echoed["reasoning"] == {"effort": None, "summary": None}
