"""The command that updates the search index and the last activity of sessions from the log."""

import msgspec

from holdfast.core.ids import Tenant, WorkerId
from holdfast.core.transaction.commands.command import Command

LogPosition = tuple[int, int]
"""Transaction and position of an entry: the order in which followers see the log."""


class IndexedItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item in the index."""

    pos: int
    """The position of its entry in the log."""
    back: int
    """How many items of the entry follow it."""
    terms: str
    """The terms, separated by blanks."""
    at: float


class RemovedItems(msgspec.Struct, frozen=True, gc=False):
    """A range of a session's items that was erased, by the entry with the number `n`."""

    session: int
    n: int
    from_seq: int
    to_seq: int


class ActiveSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a session was last active; `session` is the session's number in the log."""

    session: int
    tenant: Tenant
    at: float


class IndexLog(Command[bool], frozen=True, kw_only=True):
    """Index the entries between two positions; return whether this command indexed them.

    False if another follower was first: the caller reads the position again.
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
    """Whether the batch was full, so that more entries may follow at once."""
