"""Reading of the arguments of a call; the model is told what is wrong with them."""

Arguments = dict[str, object]


class BadArgument(Exception):
    """An argument that a tool cannot use; its text is the error of the call."""


def read_number(arguments: Arguments, name: str, default: int, most: int) -> int:
    """Return a positive whole number, at most `most`."""
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(f"{name} must be a positive whole number")
    return min(value, most)


def read_text(arguments: Arguments, name: str) -> str | None:
    """Return a text; None if it is not given."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise BadArgument(f"{name} must be text")
    return value


def read_flag(arguments: Arguments, name: str) -> bool:
    """Return a flag, by default false."""
    value = arguments.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadArgument(f"{name} must be true or false")
    return bool(value)
