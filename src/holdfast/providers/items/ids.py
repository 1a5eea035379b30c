"""Allocate ids and names that every server and client accepts."""

import base64
import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.model.item_ids import with_place
from holdfast.core.projection.call_ids import is_sendable, sendable

SHORT = 9
MIN_UNIQUE = 16
"""Shorter ids (`call_1`, `0`) come from servers that restart their counters with every answer."""
MAX_ITEM_ID = 64
"""Servers do not accept longer item ids."""
MAX_TOOL_NAME = 64
_PREFIX = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
_NAMESPACE_END = "__"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NAME_DIGEST = 8

NewId = Callable[[str], str]


class IdAllocator(msgspec.Struct, eq=False):
    """Allocates the ids of one answer: the server's own if they are unique, else new ones.

    The same id of the server always gets the same id.
    """

    _new_id: NewId
    _is_used: Callable[[str], bool] = lambda _: False
    """Returns whether the session already has a call with this id."""
    _answer_seq: int = 0
    """The place of the answer's first item in its session's log; 0 if unknown."""
    _items: dict[str, str] = {}
    _calls: dict[tuple[int, str], str] = {}

    def item(self, kind: str, server_id: Any, index: int) -> str:
        """Return the id of an item of this answer."""
        if isinstance(server_id, str) and MIN_UNIQUE <= len(server_id) <= MAX_ITEM_ID:
            return server_id
        key = f"{index}\0{server_id}"
        if key not in self._items:
            item_id = self._new_id(_PREFIX.get(kind, "item"))
            first = self._answer_seq
            self._items[key] = with_place(item_id, first + index) if first else item_id
        return self._items[key]

    def call(self, server_id: Any, index: int) -> str:
        """Return the id of a call of this answer; it is unique in the session."""
        key = (index, str(server_id))
        if key not in self._calls:
            is_usable = (
                isinstance(server_id, str)
                and len(server_id) >= MIN_UNIQUE
                and is_sendable(server_id)
                and server_id not in self._calls.values()
                and not self._is_used(server_id)
            )
            self._calls[key] = server_id if is_usable else self._new_id("call")
        return self._calls[key]

    def output_of(self, server_id: Any) -> Any:
        """Return the allocated id of this answer's last call with the server's id `server_id`."""
        ids = [ours for (_, theirs), ours in self._calls.items() if theirs == server_id]
        return ids[-1] if ids else server_id

    def aliases(self) -> dict[str, str]:
        """Return the calls whose id differs from the server's: allocated id to server id."""
        return {ours: theirs for (_, theirs), ours in self._calls.items() if ours != theirs}


class _Called(msgspec.Struct):
    call_id: str | None = None


_read_called = msgspec.json.Decoder(_Called).decode


def call_id_of(body: bytes) -> str | None:
    """Return the call id of an item, or None."""
    return _read_called(body).call_id if b'"call_id"' in body else None


def short_call_id(call_id: str) -> str:
    """Return a call id for the strictest Chat servers: nine letters and digits.

    A call and its output get the same id, in every request.
    """
    if len(call_id) == SHORT and call_id.isascii() and call_id.isalnum():
        return call_id
    digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    return base64.b32encode(digest)[:SHORT].decode().lower()


def fitting_call_id(call_id: str, max_length: int) -> str:
    """Return a call id of a valid length; a call and its output get the same."""
    return call_id if 0 < len(call_id) <= max_length else sendable(call_id, "long")


class ToolName(msgspec.Struct, frozen=True):
    """The name of a tool within its namespace."""

    namespace: str
    name: str


def flat_tool_name(namespace: Any, name: Any) -> Any:
    """Return a flat name for a namespace's tool, for servers without namespaces.

    The same pair always gets the same name. A name that has to be changed ends in a digest of the
    pair, so that no two tools share a name.
    """
    if not isinstance(namespace, str) or not namespace or not isinstance(name, str):
        return name
    separator = "" if namespace.endswith(_NAMESPACE_END) else _NAMESPACE_END
    flat = f"{namespace}{separator}{name}"
    usable = _NOT_IN_NAMES.sub("_", flat)
    if usable == flat and len(flat) <= MAX_TOOL_NAME:
        return flat
    digest = hashlib.blake2b(f"{namespace}\0{name}".encode("utf-8", "surrogatepass"))
    return f"{usable[: MAX_TOOL_NAME - _NAME_DIGEST - 1]}_{digest.hexdigest()[:_NAME_DIGEST]}"
