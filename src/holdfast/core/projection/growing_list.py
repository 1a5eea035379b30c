"""Append-only lists that hold what was computed from their first items.

A lane's context, its projection and the input of each upstream grow together, turn by turn. The
projection is held by the list of the context, and what upstreams are sent by the list of the
projection. So they are found without a search and are never those of another history. One cache
bounds all three: it holds the context, and whatever was computed from it goes with it.
"""

from abc import ABCMeta
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

import msgspec

ItemT = TypeVar("ItemT")
MAX_FORMS = 2
"""Most forms that a list holds: one for each of the upstreams that a session last used."""


class Form(msgspec.Struct):
    """A value computed from the first `length` items of a list; `key` identifies the computation.

    It belongs to one list. The code that computed it extends it in place.
    """

    key: Hashable
    length: int

    def cut(self, length: int) -> "Form | None":
        """Return a copy for another list that has the first `length` items, or None.

        The copy may cover fewer items. The form itself is not changed.
        """
        return msgspec.structs.replace(self) if self.length <= length else None


class GrowingList(list[ItemT]):
    """An append-only list, and the forms of its first items."""

    __slots__ = ("forms", "size")

    def __init__(self, items: Iterable[ItemT] = (), forms: tuple[Form, ...] = ()) -> None:
        super().__init__(items)
        self.forms = forms
        """The most recently computed form first."""
        self.size = 0
        """About how many bytes the items take, as whoever keeps the list counts them."""

    def without(self, first: int, last: int) -> "GrowingList[ItemT]":
        """Return a new list without the items from `first` up to, but not including, `last`."""
        return GrowingList(self[:first] + self[last:], self._forms_upto(first))

    def upto(self, length: int) -> "GrowingList[ItemT]":
        """Return a new list of the first `length` items."""
        return GrowingList(self[:length], self._forms_upto(length))

    def _forms_upto(self, length: int) -> tuple[Form, ...]:
        forms = [form.cut(length) for form in self.forms]
        return tuple([form for form in forms if form is not None])

    def find_form(self, key: Hashable, length: int) -> Form | None:
        """Return the form with this key, or None if there is none or it covers more items."""
        for form in self.forms:
            if form.key == key and form.length <= length:
                return form
        return None

    def keep_form(self, new: Form) -> None:
        """Add a form; it replaces the one with the same key."""
        others = [form for form in self.forms if form.key != new.key]
        self.forms = (new, *others[: MAX_FORMS - 1])


class _SequenceMeta(msgspec.StructMeta, ABCMeta):
    """The metaclass of a struct that is a `Sequence`."""


class SharedPrefix(
    msgspec.Struct,
    Sequence[ItemT],
    Generic[ItemT],
    metaclass=_SequenceMeta,
    frozen=True,
    gc=False,
    eq=False,
):
    """The first `length` items of an append-only list; they never change."""

    shared: GrowingList[ItemT]
    length: int

    def grown(self, new: list[ItemT]) -> "SharedPrefix[ItemT]":
        """Return a longer prefix.

        It shares the list, unless another prefix has grown from here to other items: then it
        copies it.
        """
        shared, length = self.shared, self.length + len(new)
        ahead = shared[self.length : length]
        if ahead != new[: len(ahead)]:
            shared, ahead = shared.upto(self.length), []
        shared += new[len(ahead) :]
        return SharedPrefix(shared, length)

    def upto(self, length: int) -> "SharedPrefix[ItemT]":
        """Return a shorter prefix."""
        return SharedPrefix(self.shared, min(length, self.length))

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
            return bool(other.length == self.length)
        return self[:] == list(other)

    def __ne__(self, other: object) -> bool:
        # The `__ne__` of structs does not call `__eq__`.
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    __hash__ = None  # type: ignore[assignment] # as lists have none


class LargePrefix(SharedPrefix[ItemT], frozen=True, gc=False, eq=False):
    """A prefix with so many bytes that functions which read all of it run in a thread."""


def share(items: Iterable[ItemT]) -> SharedPrefix[ItemT]:
    """Return items as a prefix; a prefix is returned unchanged."""
    if isinstance(items, SharedPrefix):
        return items
    shared = items if isinstance(items, GrowingList) else GrowingList(items)
    return SharedPrefix(shared, len(shared))
