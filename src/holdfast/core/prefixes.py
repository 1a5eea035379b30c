"""What was made of the beginning of a list, kept for when the list comes back longer.

It is found again by what the list holds, item for item, never by a name or a number alone: what is
found can therefore not be out of date. Bounded in bytes; the longest unused goes first.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


class Prefix(Generic[ItemT, MadeT]):
    """The beginning of a list, and what was made of it."""

    __slots__ = ("items", "made", "size")

    def __init__(self, items: list[ItemT], made: MadeT, size: int) -> None:
        self.items = items
        self.made = made
        self.size = size
        """About how many bytes the two take."""


class Prefixes(Generic[ItemT, MadeT]):
    """One beginning for each key."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Prefix[ItemT, MadeT]] = OrderedDict()
        self.held_bytes = 0

    def find(self, key: Hashable, items: Sequence[ItemT]) -> Prefix[ItemT, MadeT] | None:
        """Return what is known of how `items` begin."""
        if key not in self._kept:
            return None
        kept = self._kept[key]
        # Items that are the same objects are not looked into: this is a walk over pointers.
        if items[: len(kept.items)] != kept.items:
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
