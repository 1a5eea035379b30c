"""Work that reads a whole history: in a thread if the history is long."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core.projection.growing_list import LargePrefix

LONG_HISTORY = 2000
"""Work on more items than this is done in a thread."""
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def read_all(
    items: Sequence[ItemT], function: Callable[[Sequence[ItemT]], ResultT]
) -> ResultT:
    """Return what a function makes of items, without blocking the event loop if they are many.

    A thread gets a list of its own: the given one may grow meanwhile.
    """
    if len(items) <= LONG_HISTORY and type(items) is not LargePrefix:
        return function(items)
    return await asyncio.to_thread(function, items[:])
