"""The one cache of this code base: bounded in size, evicts the least recently used entries."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SizedLru(Generic[KeyT, ValueT]):
    """A mapping that evicts its least recently used entries beyond `max_size`.

    Sizes are the caller's: bytes for most caches, 1 for each entry where entries are counted.
    """

    __slots__ = ("_max_size", "_sizes", "_values", "held", "peek")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._sizes: dict[KeyT, int] = {}
        self.held = 0
        """The sum of the sizes of all entries."""
        self.peek: Callable[[KeyT], ValueT | None] = self._values.get
        """Return the value of a key without marking it as used; None if there is none.

        It suits callers that store the value again right afterwards, and values used only once.
        """

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key and mark it as used; None if there is none."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: KeyT, value: ValueT, size: int) -> None:
        """Store a value as the most recently used one, then evict what no longer fits.

        A value that is larger than the whole cache evicts itself, and everything else with it;
        callers that hold large values check their size first.
        """
        values, sizes = self._values, self._sizes
        if key in values:
            self.held -= sizes[key]
            values.move_to_end(key)
        values[key], sizes[key] = value, size
        self.held += size
        while self.held > self._max_size:
            oldest, _ = values.popitem(last=False)
            self.held -= sizes.pop(oldest)

    def pop(self, key: KeyT) -> ValueT | None:
        """Remove a key and return its value; None if there is none."""
        self.held -= self._sizes.pop(key, 0)
        return self._values.pop(key, None)

    def clear(self) -> None:
        """Remove everything."""
        self._values.clear()
        self._sizes.clear()
        self.held = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._values)
