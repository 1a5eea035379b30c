"""A least-recently-used cache that is bounded in bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ByteLru(Generic[KeyT, ValueT]):
    """Keep values up to a total size; the least recently used one is evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key and mark it as used; None when it is not cached."""
        entries = self._entries
        if key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key][0]

    def put(self, key: KeyT, value: ValueT, size: int) -> None:
        """Cache a value of about `size` bytes.

        A value that would take more than a quarter of the cache is not kept: it would evict
        everybody else's.
        """
        self.discard(key)
        if size * 4 > self._max_bytes:
            return
        self._entries[key] = value, size
        self.held_bytes += size
        while self.held_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.held_bytes -= freed

    def discard(self, key: KeyT) -> None:
        """Remove a key, if it is cached."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.held_bytes -= entry[1]
