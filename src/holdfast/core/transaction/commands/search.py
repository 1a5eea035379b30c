"""The command of the view behind the log: what can be found, and when a session was last active."""

import msgspec

from holdfast.core.ids import Tenant, WorkerId
from holdfast.core.transaction.commands.command import Command

LogPosition = tuple[int, int]
"""Transaction and position of an entry: the order in which followers see the log."""


class IndexedItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item of the index."""

    pos: int
    """The position of its entry in the log."""
    back: int
    """How many items of the entry follow it."""
    terms: str
    """Separated by blanks."""
    at: float


class RemovedItems(msgspec.Struct, frozen=True, gc=False):
    """A range of a session's items that was erased; `n` is the entry that says so."""

    session: int
    n: int
    from_seq: int
    to_seq: int


class ActiveSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a session was last active; `session` is the number that the log has for it."""

    session: int
    tenant: Tenant
    at: float


class IndexLog(Command[bool], frozen=True, kw_only=True):
    """Index the entries between two positions; answers whether they are indexed now.

    They are not if another follower was there first: the caller reads its position again.
    """

    worker: WorkerId
    after: LogPosition
    upto: LogPosition
    items: tuple[IndexedItem, ...] = ()
    active: tuple[ActiveSession, ...] = ()
    removed: tuple[RemovedItems, ...] = ()
    deleted: tuple[int, ...] = ()
    """Sessions that were deleted, by their numbers in the log."""
    has_more: bool = False
    """Whether there were as many entries as were asked for: more may follow at once."""
