"""A look at the database itself, beside the gateways: when does which node accept commits?"""

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import asyncpg

from tests.failover.cluster import Cluster
from tests.failover.node import Node

INTERVAL_SECONDS = 0.1
ANSWER_SECONDS = 2.0
OUTAGE_SECONDS = 1.0
"""Commits of one node that are farther apart have an outage between them."""
WRITE = "insert into probes default values"


class Probe:
    """Commits a row on each node that lets it, over a connection of its own for each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._committed: dict[str, list[float]] = {node.name: [] for node in cluster.nodes}
        self._changed = asyncio.Event()

    async def back_since(self, moment: float, *, before: Node) -> float:
        """Wait until a node accepts commits after an outage of `before`; return since when.

        That is another node, or the same one if it was the first to be ready again.
        """
        while True:
            if back := list(self._returns(moment, before)):
                return min(back)
            self._changed.clear()
            await self._changed.wait()

    def _returns(self, moment: float, before: Node) -> Iterator[float]:
        """Yield the commits behind the moment that begin a time of commits."""
        for name, committed in self._committed.items():
            for earlier, later in itertools.pairwise([-math.inf, *committed]):
                is_first = name != before.name or later - earlier > OUTAGE_SECONDS
                if later > moment and is_first:
                    yield later

    async def watch(self, node: Node) -> None:
        """Probe one node for as long as the task lives."""
        url = self._cluster.superuser_url(node, "probe")
        while True:
            # Whatever a node that is killed in the middle of an answer leads to, it is no answer.
            with suppress(Exception):
                connection = await asyncpg.connect(
                    url, timeout=ANSWER_SECONDS, command_timeout=ANSWER_SECONDS
                )
                try:
                    await self._write(node, connection)
                finally:
                    connection.terminate()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _write(self, node: Node, connection: asyncpg.Connection) -> None:
        while True:
            if not await connection.fetchval("select pg_is_in_recovery()"):
                await connection.execute(WRITE)
                self._committed[node.name].append(time.monotonic())
                self._changed.set()
            await asyncio.sleep(INTERVAL_SECONDS)


@asynccontextmanager
async def probing(cluster: Cluster) -> AsyncIterator[Probe]:
    """Probe all nodes for the length of a block."""
    connection = await asyncpg.connect(cluster.superuser_url(await cluster.leader(), "probe"))
    await connection.execute("create table probes (at timestamptz default clock_timestamp())")
    await connection.close()
    probe = Probe(cluster)
    tasks = [asyncio.create_task(probe.watch(node)) for node in cluster.nodes]
    try:
        yield probe
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
