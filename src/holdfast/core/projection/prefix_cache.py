"""Results computed from the beginning of a list, reused when the list comes back longer.

A cached result is found by the content of the list, item for item, never by a name or a number
alone, so it cannot be stale. A list that only grows is held once and shared by everybody who has
seen a part of it: whether one beginning continues another is then known without comparing items.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import is_
from typing import Generic, TypeVar, overload

import msgspec

from holdfast.core.lru import SizedLru

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class SharedPrefix(Sequence[ItemT]):
    """The first `length` items of a list that is only ever appended to; immutable itself."""

    __slots__ = ("length", "shared")

    def __init__(self, shared: list[ItemT], length: int | None = None) -> None:
        self.shared = shared
        self.length = len(shared) if length is None else length

    def grown(self, new: Iterable[ItemT]) -> "SharedPrefix[ItemT]":
        """Return a longer prefix.

        It shares the list, unless another prefix has grown from here before: then it copies it.
        """
        shared = self.shared if len(self.shared) == self.length else self.shared[: self.length]
        shared += new
        return SharedPrefix(shared)

    def upto(self, length: int) -> "SharedPrefix[ItemT]":
        """Return a shorter prefix."""
        return SharedPrefix(self.shared, min(length, self.length))

    def common_length(self, other: "SharedPrefix[ItemT]") -> int:
        """Return how many first items are the same in both.

        Prefixes of one list are not compared. Otherwise items are compared by identity and, from
        the first that is another object, by value.
        """
        shorter = min(self.length, other.length)
        if self.shared is other.shared:
            return shorter
        mine, others = self.shared, other.shared
        same = list(map(is_, islice(mine, shorter), others))
        length = same.index(False) if False in same else shorter
        while length < shorter and mine[length] == others[length]:
            length += 1
        return length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[ItemT]:
        return islice(self.shared, self.length)

    @overload
    def __getitem__(self, at: int) -> ItemT: ...
    @overload
    def __getitem__(self, at: slice) -> list[ItemT]: ...
    def __getitem__(self, at: int | slice) -> ItemT | list[ItemT]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self.length)
            if step > 0:
                return self.shared[start:stop:step]
            return [self.shared[index] for index in range(start, stop, step)]
        index = at + self.length if at < 0 else at
        if not 0 <= index < self.length:
            raise IndexError(f"index {at} is outside a prefix of {self.length} items")
        return self.shared[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, SharedPrefix) and other.shared is self.shared:
            return other.length == self.length
        return self[:] == list(other)

    __hash__ = None  # type: ignore[assignment] # as lists have none


class LargePrefix(SharedPrefix[ItemT]):
    """A prefix with so many bytes that a function which goes through them belongs in a thread."""

    __slots__ = ()


def share(items: Sequence[ItemT]) -> SharedPrefix[ItemT]:
    """Return items as a prefix; one that is a prefix already is returned as it is."""
    return items if isinstance(items, SharedPrefix) else SharedPrefix(list(items))


class Prefix(msgspec.Struct, Generic[ItemT, ResultT], frozen=True):
    """The beginning of a list, and what was computed from it."""

    items: SharedPrefix[ItemT]
    made: ResultT
    size: int
    """About how many bytes the two take."""


class PrefixCache(SizedLru[Hashable, Prefix[ItemT, ResultT]]):
    """One beginning for each key, bounded in bytes."""

    __slots__ = ()

    @property
    def held_bytes(self) -> int:
        """About how much memory the entries take."""
        return self.held

    def find(self, key: Hashable, items: SharedPrefix[ItemT]) -> Prefix[ItemT, ResultT] | None:
        """Return the cached beginning of `items`, if there is one."""
        found = self._values.get(key)
        if found is None or found.items.length > items.length:
            return None
        if found.items.shared is items.shared or found.items.common_length(items) == len(
            found.items
        ):
            self._values.move_to_end(key)
            return found
        return None

    def keep(self, key: Hashable, prefix: Prefix[ItemT, ResultT]) -> None:
        """Cache a beginning in place of the one that the key had.

        One that would take more than a quarter of the cache is not kept: it would evict the rest.
        """
        if prefix.size * 4 > self._max_size:
            self.pop(key)
        else:
            self.put(key, prefix, prefix.size)
