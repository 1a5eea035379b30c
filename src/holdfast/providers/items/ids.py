"""Ids that are ours to give: items and calls whose own would not be unique, or fit nowhere else."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.core.projection.call_ids import is_sendable, sendable

SHORT = 9
MIN_UNIQUE = 16
"""Shorter ids (`call_1`, `0`) are counted by servers that begin anew with every answer."""
MAX_KEPT = 64
"""Longer ids of items fit nowhere else."""
_PREFIX = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}

NewId = Callable[[str], str]


class IdAllocator:
    """The ids of one answer: kept where they can be, given anew where not, the same each time."""

    def __init__(self, new_id: NewId, find_taken: Callable[[], Iterable[str]] = tuple) -> None:
        self._new_id = new_id
        self._find_taken = find_taken
        """Finds the call ids that the session has already: hardly any answer needs to know."""
        self._taken: set[str] | None = None
        self._items: dict[str, str] = {}
        self._calls: dict[tuple[int, str], str] = {}

    def item(self, kind: str, theirs: Any, index: int) -> str:
        """Return the id of an item of this answer."""
        if isinstance(theirs, str) and MIN_UNIQUE <= len(theirs) <= MAX_KEPT:
            return theirs
        known = f"{index}\0{theirs}"
        if known not in self._items:
            self._items[known] = self._new_id(_PREFIX.get(kind, "item"))
        return self._items[known]

    def call(self, theirs: Any, index: int) -> str:
        """Return the id of a call of this answer; no other call of the session has it."""
        known = (index, str(theirs))
        if known not in self._calls:
            taken = self._taken
            if taken is None:
                taken = self._taken = set(self._find_taken())
            is_good = (
                isinstance(theirs, str)
                and len(theirs) >= MIN_UNIQUE
                and is_sendable(theirs)
                and theirs not in taken
            )
            ours = theirs if is_good else self._new_id("call")
            taken.add(ours)
            self._calls[known] = ours
        return self._calls[known]

    def answered(self, theirs: Any) -> Any:
        """Return our id of the last call of this answer that its server names so."""
        ours = [one for (_, name), one in self._calls.items() if name == theirs]
        return ours[-1] if ours else theirs

    def aliases(self) -> dict[str, str]:
        """Return the calls whose id is not the server's own: ours to theirs."""
        return {ours: theirs for (_, theirs), ours in self._calls.items() if ours != theirs}


class _Called(msgspec.Struct):
    call_id: str | None = None


_read_called = msgspec.json.Decoder(_Called).decode


def call_ids(items: Iterable[bytes]) -> set[str]:
    """Return the call ids that a history already has."""
    found = set()
    for body in items:
        if b'"call_id"' in body:
            call_id = _read_called(body).call_id
            if call_id is not None:
                found.add(call_id)
    return found


def short_call_id(call_id: str) -> str:
    """Return a call id as the strictest Chat servers want it: nine letters and digits.

    It is the same for both ends of a pair, and in every request.
    """
    if len(call_id) == SHORT and call_id.isascii() and call_id.isalnum():
        return call_id
    told = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    return base64.b32encode(told)[:SHORT].decode().lower()


def fitting_call_id(call_id: str, longest: int) -> str:
    """Return a call id that a server takes; both ends of a pair get the same."""
    return call_id if 0 < len(call_id) <= longest else sendable(call_id, "long")
