"""What was made of the beginning of a list, kept for when the list comes back longer.

It is found again by what the list holds, item for item, never by a name or a number alone: what is
found can therefore not be out of date. Bounded in bytes; the longest unused goes first.
A list that only grows is held once, by everybody who has seen some of it: whether one beginning
goes on from another is then known without a look at their items.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

import msgspec

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


class SharedPrefix(Sequence[ItemT]):
    """The first `length` items of a list that is only ever added to; it is never changed."""

    __slots__ = ("length", "shared")

    def __init__(self, shared: list[ItemT]) -> None:
        self.shared = shared
        self.length = len(shared)

    def grown(self, new: Iterable[ItemT]) -> "SharedPrefix[ItemT]":
        """Return a longer one; where another grew from here before, it is a list of its own."""
        shared = self.shared if len(self.shared) == self.length else self[:]
        shared += new
        return SharedPrefix(shared)

    def upto(self, length: int) -> "SharedPrefix[ItemT]":
        """Return a shorter one."""
        shorter = SharedPrefix(self.shared)
        shorter.length = length
        return shorter

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[ItemT]:
        return islice(self.shared, self.length)

    @overload
    def __getitem__(self, at: int) -> ItemT: ...
    @overload
    def __getitem__(self, at: slice) -> list[ItemT]: ...
    def __getitem__(self, at: int | slice) -> ItemT | list[ItemT]:
        return self.shared[: self.length][at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, SharedPrefix) and other.shared is self.shared:
            return other.length == self.length
        return self[:] == list(other)

    __hash__ = None  # type: ignore[assignment] # as lists have none


class Prefix(msgspec.Struct, Generic[ItemT, MadeT], frozen=True):
    """The beginning of a list, and what was made of it."""

    items: SharedPrefix[ItemT]
    made: MadeT
    size: int
    """About how many bytes the two take."""


class PrefixCache(Generic[ItemT, MadeT]):
    """One beginning for each key."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Prefix[ItemT, MadeT]] = OrderedDict()
        self.held_bytes = 0

    def find(self, key: Hashable, items: SharedPrefix[ItemT]) -> Prefix[ItemT, MadeT] | None:
        """Return what is known of how `items` begin."""
        if key not in self._kept:
            return None
        kept = self._kept[key]
        length = kept.items.length
        if length > items.length:
            return None
        if kept.items.shared is not items.shared and items[:length] != kept.items[:]:
            return None
        self._kept.move_to_end(key)
        return kept

    def keep(self, key: Hashable, prefix: Prefix[ItemT, MadeT]) -> None:
        """Remember a beginning in the place of the one that was known, as the newest of all."""
        if prefix.size * 4 > self._max_bytes:
            self.drop(key)
            return
        if key in self._kept:
            self.held_bytes -= self._kept[key].size
            self._kept.move_to_end(key)
        self._kept[key] = prefix
        self.held_bytes += prefix.size
        while self.held_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.held_bytes -= oldest.size

    def drop(self, key: Hashable) -> None:
        """Forget what is known under a key."""
        before = self._kept.pop(key, None)
        if before is not None:
            self.held_bytes -= before.size
