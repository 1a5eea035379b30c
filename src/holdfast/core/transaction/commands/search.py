"""The command of the view behind the log: what can be found, and when a session was last active."""

import msgspec

from holdfast.core.ids import WorkerId
from holdfast.core.transaction.commands.command import Command

LogPosition = tuple[int, int]
"""Transaction and position of an entry: the order in which followers see the log."""


class IndexedItem(msgspec.Struct, frozen=True, gc=False):
    """An item of the index; `session` is the number that the log has for its session."""

    session: int
    n: int
    seq: int
    role: str
    at: float
    terms: tuple[str, ...]


class RemovedItems(msgspec.Struct, frozen=True, gc=False):
    """A range of a session's items that was erased."""

    session: int
    from_seq: int
    to_seq: int


class IndexLog(Command[bool], frozen=True, kw_only=True):
    """Index the entries between two positions; answers whether they are indexed now.

    They are not if another follower was there first: the caller reads its position again.
    """

    worker: WorkerId
    after: LogPosition
    upto: LogPosition
    items: tuple[IndexedItem, ...] = ()
    removed: tuple[RemovedItems, ...] = ()
    has_more: bool = False
    """Whether there were as many entries as were asked for: more may follow at once."""
