"""The one cache of this code base: least recently used out first, bounded by the size it holds."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SizedLru(Generic[KeyT, ValueT]):
    """A mapping that evicts its least recently used entries beyond `max_size`.

    Sizes are the caller's: bytes for most caches, 1 for each entry where entries are counted.
    """

    __slots__ = ("_entries", "_max_size", "held")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._entries: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self.held = 0
        """The sum of the sizes of all entries."""

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key and mark it as used; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: KeyT, value: ValueT, size: int) -> None:
        """Store a value as the most recently used one, then evict what no longer fits.

        A value that is larger than the whole cache evicts itself, and everything else with it;
        callers that hold large values check their size first.
        """
        entries = self._entries
        if key in entries:
            self.held -= entries[key][1]
            entries.move_to_end(key)
        entries[key] = (value, size)
        self.held += size
        while self.held > self._max_size:
            _, (_, freed) = entries.popitem(last=False)
            self.held -= freed

    def pop(self, key: KeyT) -> ValueT | None:
        """Remove a key and return its value; None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.held -= entry[1]
        return entry[0]

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()
        self.held = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._entries)
