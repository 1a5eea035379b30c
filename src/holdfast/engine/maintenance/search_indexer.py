"""Update the search index from the log, in the background.

Turns do not wait for it: it reads committed entries, one bounded batch at a time, and pauses for as
long as each batch took. A batch has a fixed cost, about that of 15 turns, so after one that was not
full it waits for more entries. Its position is stored with the index, so that it continues after a
crash. Several processes may each run one: if two index the same entries, only one of them succeeds.
"""

import asyncio
import time

from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import IndexLog
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway

BATCH = 1024
"""Entries per transaction, fewer if they are long. Other commits wait meanwhile."""
POLL_SECONDS = 0.5
"""How often the log is checked while there is less than a full batch."""
RETRY_SECONDS = 5.0


class SearchIndexer:
    """Follows the log of one store."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        """Index until cancelled; after a failure continue from the stored position."""
        while True:
            began = time.monotonic()
            try:
                command = await self.index_batch()
            except HoldfastError as exc:
                log.failed("search.not_indexed", exc, reason=exc.message)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            has_more = command is not None and command.has_more
            del command  # it holds the terms of a whole batch: free them during the pause
            await asyncio.sleep(time.monotonic() - began if has_more else POLL_SECONDS)

    async def index_batch(self) -> IndexLog | None:
        """Index the next entries and return the command that did so, or None if there were none."""
        command = await self._gateway.store.search.read_backlog(self._gateway.worker.id, BATCH)
        if command is not None:
            await self._gateway.submit(command)
        return command

    async def catch_up(self) -> None:
        """Index everything that is committed now."""
        while await self.index_batch() is not None:
            pass
