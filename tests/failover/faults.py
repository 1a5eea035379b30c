"""What is done to the primary, and what puts its node in order again."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from tests.failover import processes
from tests.failover.cluster import Cluster
from tests.failover.node import Node

HANG_SECONDS = 30.0
"""Longer than the `ttl` of deploy/patroni.yml, after which a standby takes over."""
HELD_BACK_SECONDS = 1.0

Heal = Callable[[], Awaitable[None]]
Fault = Callable[[Cluster, Node], Awaitable[Heal]]


async def _nothing() -> None:
    """Patroni puts the node in order by itself."""


async def kill_postgres(cluster: Cluster, primary: Node) -> Heal:
    """Kill PostgreSQL; Patroni lives."""
    await asyncio.to_thread(primary.kill_postgres)
    return _nothing


async def kill_node(cluster: Cluster, primary: Node) -> Heal:
    """Kill PostgreSQL and Patroni, as a machine that loses power does."""
    await asyncio.to_thread(primary.kill)

    async def start() -> None:
        primary.start()

    return start


async def switch_over(cluster: Cluster, primary: Node) -> Heal:
    """Let a standby take over in good order."""
    await cluster.switch_over(primary)
    return _nothing


async def hang(cluster: Cluster, primary: Node) -> Heal:
    """Stop all processes of the node without ending them: connections stay, nobody answers."""
    frozen = primary.freeze()
    wakes_at = asyncio.get_running_loop().time() + HANG_SECONDS

    async def thaw() -> None:
        await asyncio.sleep(wakes_at - asyncio.get_running_loop().time())
        processes.send(frozen, signal.SIGCONT)

    return thaw


async def kill_behind(cluster: Cluster, primary: Node) -> Heal:
    """Kill PostgreSQL while the standbys lack the log of its last second."""
    processes.send(primary.senders(), signal.SIGSTOP)
    await asyncio.sleep(HELD_BACK_SECONDS)
    every = primary.postgres()
    await asyncio.to_thread(processes.kill, every)
    return _nothing
