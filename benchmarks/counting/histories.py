"""Counts of turns of clients that send their whole history each time."""

import asyncio
from pathlib import Path

import msgspec

from benchmarks.counting.profiled import Counts, ProfiledGateway, connected, profiled_gateway
from benchmarks.counting.upstream import Upstream, serving
from benchmarks.http_client import Connection
from benchmarks.sections.flows import FLOWS, Dialogue
from benchmarks.servers import processes

FEW_TURNS, MANY_TURNS = 5, 45
NAMES = {"chat": "whole Chat history, key", "responses": "whole list of items, key"}


class HistoryCounts(msgspec.Struct, frozen=True):
    """What each item of a known history adds to the work of a turn."""

    calls_per_item: float
    statements_per_item: float


def history_counts(folder: Path, api: str) -> HistoryCounts:
    """Return what the items of a long history cost more than those of a short one."""
    port = processes.free_port()

    async def run(gateway: ProfiledGateway) -> HistoryCounts:
        async with serving(Upstream(), port), connected(gateway.port) as connection:
            short = await _cost(gateway, connection, api, FEW_TURNS)
            long = await _cost(gateway, connection, api, MANY_TURNS)
            more = long.minus(short)
            items = 2 * (MANY_TURNS - FEW_TURNS)
            return HistoryCounts(more.calls / items, more.statements / items)

    with profiled_gateway(folder, folder / f"history-{api}.db", api, port) as gateway:
        return asyncio.run(run(gateway))


async def _cost(gateway: ProfiledGateway, connection: Connection, api: str, turns: int) -> Counts:
    """Return the counts of the next turn of a dialogue that has so many turns."""
    step, dialogue = FLOWS[api][NAMES[api]], Dialogue(connection)
    for _ in range(turns):
        await step(dialogue)
    return await gateway.cost(lambda _: step(dialogue))
