"""Checks of the arguments of the Python API, before anything is done."""

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

import msgspec

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.core.model.items import ROLES, NewItem, message, read_item, write_item
from holdfast.core.model.session import ProviderState, Usage

ValueT = TypeVar("ValueT")
MAX_COUNT = 2**62


def as_items(value: Any, role: str) -> tuple[NewItem, ...]:
    """Return a caller's input as items: text becomes messages of `role`, bytes stay as they are."""
    if role not in ROLES:
        raise InvalidItem(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    if isinstance(value, str | dict | bytes):
        return (_as_item(value, role),)
    if not isinstance(value, Iterable):
        raise InvalidItem(f"items must be text, dicts or JSON bytes, not {type(value).__name__}")
    return tuple(_as_item(each, role) for each in value)


def _as_item(value: Any, role: str) -> NewItem:
    match value:
        case str():
            return message(role, value)
        case bytes():
            return read_item(value)
        case dict():
            return write_item(value)
        case _:
            kind = type(value).__name__
            raise InvalidItem(f"an item must be text, a dict or JSON bytes, not {kind}")


def require_choice(name: str, value: ValueT, choices: Any) -> ValueT:
    """Return `value` if it is one of the choices."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def require_count(name: str, value: int | None) -> int | None:
    """Return `value` if it is a count, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise InvalidInput(f"{name} must be a whole number, 0 or more, not {value!r}")
    return value


def require_instance(name: str, value: ValueT, kind: type[ValueT]) -> ValueT:
    """Return `value` if it is an instance of `kind`; raise otherwise."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def require_id(name: str, value: str) -> str:
    """Return `value` if it is a valid id: text that every store can look up."""
    if not _is_storable(value):
        raise InvalidInput(f"{name} must be an id, not {value!r}")
    return value


def _is_storable(value: object) -> bool:
    """Whether a value is text that every store can save."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_usage(usage: Usage) -> Usage:
    """Return `usage` if its counts are in range."""
    require_instance("usage", usage, Usage)
    if not usage.is_countable:
        counts = ", ".join(map(repr, msgspec.structs.astuple(usage)))
        raise InvalidInput(f"token counts must be whole numbers from 0 to 2**53, not {counts}")
    return usage


def require_provider_state(state: ProviderState) -> ProviderState:
    """Return `state` if it can be stored."""
    require_instance("state", state, ProviderState)
    for name in (state.provider, state.account, state.model):
        if not _is_storable(name):
            raise InvalidInput(f"provider state: its owner must be named in text, not {name!r}")
    require_instance("the value of provider state", state.value, bytes)
    return state


def describe_error(error: BaseException) -> str:
    """Return an error as text that every store can save."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error whose own text cannot be built
        text = type(error).__name__
    return text[:2000].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
