"""Check the types of request fields as the real servers do."""

import re
from typing import Any

from holdfast.simulator.delivery.errors import Problem, invalid
from holdfast.simulator.state.json import Json

_TYPES: dict[str, tuple[type, str]] = {
    "model": (str, "a string"),
    "previous_response_id": (str, "a string"),
    "stream": (bool, "a boolean"),
    "store": (bool, "a boolean"),
    "background": (bool, "a boolean"),
    "metadata": (dict, "an object"),
    "max_output_tokens": (int, "an integer"),
    "max_completion_tokens": (int, "an integer"),
    "max_tokens": (int, "an integer"),
}
_KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    dict: "an object",
    list: "an array",
}


def kind_of(value: object) -> str:
    """Return OpenAI's name for the type of a value."""
    return _KINDS.get(type(value), "null")


def check_types(body: Json) -> None:
    """Raise OpenAI's 400 for the first field of a wrong type, and for a limit below one."""
    for name, value in body.items():
        if value is None or name not in _TYPES:
            continue
        wanted, called = _TYPES[name]
        if type(value) is not wanted:
            raise invalid(
                f"Invalid type for '{name}': expected {called}, but got {kind_of(value)} instead.",
                name,
                "invalid_type",
            )
        if wanted is int and isinstance(value, int) and value < 1:
            raise invalid(
                f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got "
                f"{value} instead.",
                name,
                "integer_below_min_value",
            )


_NAME = re.compile(r"[A-Za-z0-9_-]+")
MAX_NAME_LENGTH = 64


def wrong_type(field: str, wanted: str, value: object) -> Problem:
    """Return OpenAI's 400 for a value of a wrong type."""
    return invalid(
        f"Invalid type for '{field}': expected {wanted}, but got {kind_of(value)} instead.",
        field,
        "invalid_type",
    )


def check_text_or_parts(value: object, field: str) -> None:
    """Raise unless a value is a text or a list of objects."""
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise wrong_type(field, "one of an array of objects or string", value)
    for place, part in enumerate(value):
        if not isinstance(part, dict):
            raise wrong_type(f"{field}[{place}]", "an object", part)


def check_called(call: Json, given: str, field: str) -> None:
    """Raise unless a call has a valid name and its arguments are text."""
    name = call.get("name")
    if not isinstance(name, str):
        raise wrong_type(f"{field}.name", "a string", name)
    if not _NAME.fullmatch(name):
        raise invalid(
            f"Invalid '{field}.name': string does not match pattern. Expected a string that "
            "matches the pattern '^[a-zA-Z0-9_-]+$'.",
            f"{field}.name",
            "invalid_value",
        )
    if len(name) > MAX_NAME_LENGTH:
        raise invalid(
            f"Invalid '{field}.name': string too long. Expected a string with maximum length "
            f"{MAX_NAME_LENGTH}, but got a string with length {len(name)} instead.",
            f"{field}.name",
            "string_above_max_length",
        )
    if not isinstance(call.get(given), str):
        raise wrong_type(f"{field}.{given}", "a string", call.get(given))


_TEXT_KEYS = ("text", "refusal", "input_text")


def text_of(content: Any) -> str:
    """Return the text of a string, of a list of parts, or of one part."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    if isinstance(content, dict):
        for key in _TEXT_KEYS:
            if isinstance(content.get(key), str):
                return str(content[key])
        return text_of(content.get("content"))
    return ""
