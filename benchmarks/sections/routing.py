"""What the way of a request costs: one gateway, two with sticky sessions, two without.

A fixed number of turns, each session used by one client at a time. CPU times are those of the
gateways and of PostgreSQL; only their ratios mean anything.
"""

import asyncio
import random
from pathlib import Path

import msgspec
from tests.postgres import PostgresServer

from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.load import QUESTION
from benchmarks.report import Report
from benchmarks.servers import processes
from benchmarks.servers.processes import Server
from benchmarks.spin import Spin

SESSIONS = 64
CLIENTS = 32
TURNS = 2_500
WARM_UP = 640
REPETITIONS = 3
WAYS = ("one gateway", "two, sticky", "two, random")


def measure(report: Report, folder: Path, database: PostgresServer, turns: int = TURNS) -> None:
    """Send the same turns each way, several times in turn; report CPU times and ratios."""
    with (
        processes.stub(folder) as stub,
        processes.gateway(database.url(), stub.url, folder) as first,
        processes.gateway(database.url(), stub.url, folder) as second,
    ):
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(REPETITIONS):
            for way in WAYS:
                servers = [first] if way == "one gateway" else [first, second]
                found[way].append(_measure(servers, way, f"{way}-{number}-", database, turns))
    best = {
        way: (min(pair[0] for pair in pairs), min(pair[1] for pair in pairs))
        for way, pairs in found.items()
    }
    for way, (gateway, postgres) in best.items():
        report.add("scale", routing=way, gateway_cpu_us=gateway, database_cpu_us=postgres)
    for name, above, below in (
        ("random / sticky", "two, random", "two, sticky"),
        ("two sticky / one", "two, sticky", "one gateway"),
    ):
        ratios = [upper / lower for upper, lower in zip(best[above], best[below], strict=True)]
        report.add("scale", ratio=name, gateway_cpu=ratios[0], database_cpu=ratios[1])


def _measure(
    servers: list[Server], way: str, prefix: str, database: PostgresServer, turns: int
) -> tuple[float, float]:
    """Return the CPU microseconds of gateways and database per turn."""
    asyncio.run(_send(servers, way, prefix, WARM_UP))
    for server in servers:
        server.wait_until_idle()
    spin = Spin()
    before = sum(server.cpu_seconds() for server in servers), _database_seconds(database)
    asyncio.run(_send(servers, way, prefix, turns))
    after = sum(server.cpu_seconds() for server in servers), _database_seconds(database)
    factor = spin.factor() * 1e6 / turns
    return (after[0] - before[0]) * factor, (after[1] - before[1]) * factor


def _database_seconds(database: PostgresServer) -> float:
    root = database.process()
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    ended = root.cpu_times()
    own = sum(float(each.user + each.system) for each in times)
    return own + float(ended.children_user + ended.children_system)


async def _send(servers: list[Server], way: str, prefix: str, turns: int) -> None:
    """Send turns; client n uses the sessions n, n + CLIENTS, …, one after the other."""
    numbers = iter(range(turns))
    chance = random.Random(prefix)
    body = msgspec.json.encode(turn_body("responses", QUESTION))

    async def run_client(client: int) -> None:
        connections = [await Connection.open(server.port) for server in servers]
        for turn, _ in enumerate(numbers):
            session = client + CLIENTS * (turn % (SESSIONS // CLIENTS))
            place = chance.randrange(len(servers)) if way == "two, random" else session
            connection = connections[place % len(servers)]
            status = await connection.post(PATHS["responses"], body, key=f"{prefix}{session}")
            if status != 200:
                raise RuntimeError(f"a turn was answered {status}")
        for connection in connections:
            await connection.close()

    await asyncio.gather(*(run_client(client) for client in range(CLIENTS)))
