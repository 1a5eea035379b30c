"""What callers of the Python front door hand in, judged before anything is done with it."""

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

import msgspec

from holdfast.core.errors import InvalidInput, InvalidItem
from holdfast.core.model.items import NewItem, message, read_item, write_item
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.session import Usage

ValueT = TypeVar("ValueT")
MOST = 2**62
ROLES = ("user", "assistant", "system", "developer")


def as_items(said: Any, role: str) -> tuple[NewItem, ...]:
    """Return what a caller said as items: text as messages of a role, bytes as they are."""
    if role not in ROLES:
        raise InvalidItem(f"a role is one of {', '.join(ROLES)}, not {role!r}")
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


def require_choice(name: str, value: ValueT, choices: Any) -> ValueT:
    """Return `value` if it is one of a closed choice."""
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def require_count(name: str, value: int | None) -> int | None:
    """Return `value` if it is a number of things, or not given."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise InvalidInput(f"{name} must be a whole number from 0 on, not {value!r}")
    return value


def require_instance(name: str, value: ValueT, kind: type[ValueT]) -> ValueT:
    """Return `value` if it is of its kind."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def require_id(name: str, value: str) -> str:
    """Return `value` if it can be looked up: text that any store can be asked for."""
    if not _is_keepable(value):
        raise InvalidInput(f"{name} must be an id, not {value!r}")
    return value


def _is_keepable(value: object) -> bool:
    """Whether a value is text that any store can keep."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_usage(usage: Usage) -> Usage:
    """Return `usage` if its counts can be counted."""
    require_instance("usage", usage, Usage)
    if not usage.is_countable:
        counts = ", ".join(map(repr, msgspec.structs.astuple(usage)))
        raise InvalidInput(f"tokens are counted in whole numbers up to 2**53, not {counts}")
    return usage


def require_provider_state(state: ProviderState) -> ProviderState:
    """Return `state` if it can be kept."""
    require_instance("state", state, ProviderState)
    for word in (state.provider, state.account, state.model):
        if not _is_keepable(word):
            raise InvalidInput(f"the maker of provider state must be text, not {word!r}")
    require_instance("the value of provider state", state.value, bytes)
    return state


def described(error: BaseException) -> str:
    """Return what went wrong as text that any store can keep."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        text = type(error).__name__
    return text[:2000].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
