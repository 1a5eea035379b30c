"""The follower of a simulated process, which indexes the log for searches."""

import asyncio
import contextlib

from holdfast.core.errors import HoldfastError
from holdfast.engine.maintenance.search_indexer import SearchIndexer

PAUSE_SECONDS = 0.4
"""The pause between two batches."""
READ_ROWS = 2
"""How many entries are read at once: few, so that erasures come between two reads."""


async def follow(indexer: SearchIndexer) -> None:
    """Index the log until the process ends; after a failure continue from the stored position."""
    while True:
        with contextlib.suppress(HoldfastError):
            await indexer.index_batch()
        await asyncio.sleep(PAUSE_SECONDS)
