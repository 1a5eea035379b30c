"""What callers of the Python front door hand in, judged before anything is done with it."""

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.core.items import NewItem, message, read_item, write_item

ValueT = TypeVar("ValueT")
MOST = 2**62


def as_items(said: Any, role: str) -> tuple[NewItem, ...]:
    """Return what a caller said as items; bytes are kept as they are."""
    if isinstance(said, str | dict | bytes):
        return (_as_item(said, role),)
    if not isinstance(said, Iterable):
        raise InvalidItem(f"items are text, dicts or JSON bytes, not {type(said).__name__}")
    return tuple(_as_item(one, role) for one in said)


def _as_item(said: Any, role: str) -> NewItem:
    match said:
        case str():
            return message(role, said)
        case bytes():
            return read_item(said)
        case dict():
            return write_item(said)
        case _:
            raise InvalidItem(f"an item is text, a dict or JSON bytes, not {type(said).__name__}")


def a_choice(name: str, value: ValueT, choices: Any) -> ValueT:
    """Return `value` if it is one of a closed choice."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def a_count(name: str, value: int | None) -> int | None:
    """Return `value` if it is a number of things, or not given."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise InvalidInput(f"{name} must be a whole number from 0 on, not {value!r}")
    return value


def an_instance(name: str, value: ValueT, kind: type[ValueT]) -> ValueT:
    """Return `value` if it is of its kind."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def an_id(name: str, value: str) -> str:
    """Return `value` if it can be looked up: text that any store can be asked for."""
    if not isinstance(value, str) or "\0" in value:
        raise InvalidInput(f"{name} must be an id, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name} must be an id, not {value!r}") from exc
    return value


def described(error: BaseException) -> str:
    """Return what went wrong as text that any store can keep."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        text = type(error).__name__
    return text[:2000].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
