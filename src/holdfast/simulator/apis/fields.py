"""The fields of a request: each of the type that the real servers insist on."""

from holdfast.simulator.problems import invalid
from holdfast.simulator.wire import Json

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
    """Return what OpenAI calls a value of this type."""
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
