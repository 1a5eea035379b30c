"""CPU time and latency of operations other than a plain turn, on sessions of different size.

Regenerating after rewinds, turns and forks at the end of a chain of forks, batches of items added
to long conversations, pages and single responses. The counts of the same operations are tests.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast
from benchmarks.counting.growth import fork_chain, regenerate, take_turn
from benchmarks.counting.profiled import exchange
from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.report import Report
from benchmarks.servers import processes
from benchmarks.servers.processes import Server
from benchmarks.spin import Spin

REWINDS = (10, 300)
DEPTHS = (5, 100)
ITEMS = (200, 4000, 8000)
LENGTHS = (10, 1000)
BATCH = 20
REPEATS = 30
_REWOUND_TURNS = 5
Operation = Callable[[int], Awaitable[Any]]


class _Bench:
    """A gateway, a connection to it and the report for the rows."""

    def __init__(
        self, report: Report, server: Server, connection: Connection, api: str, repeats: int
    ) -> None:
        self._report = report
        self._server = server
        self._repeats = repeats
        self.connection = connection
        self.api = api

    async def measure(self, name: str, axis: str, size: int, operation: Operation) -> None:
        """Measure an operation after a short warm-up."""
        warm_up = min(3, self._repeats)
        for number in range(warm_up):
            await operation(number)
        spin = Spin()
        before = self._server.cpu_seconds()
        times = []
        for number in range(self._repeats):
            began = time.perf_counter()
            await operation(warm_up + number)
            times.append((time.perf_counter() - began) * 1000)
        cpu = (self._server.cpu_seconds() - before) / len(times) * 1e6
        self._report.add(
            "operations",
            upstream=self.api,
            operation=name,
            axis=axis,
            size=size,
            p50_ms=statistics.median(times),
            cpu_us=cpu * spin.factor(),
        )


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every operation with every kind of upstream."""
    for api in ("responses", "chat"):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            sizes = {"items": (40,), "turns": (10,)} if is_short else {}
            sessions = asyncio.run(_fill(folder / "bench.db", **sizes))
            with (
                processes.stub(folder) as stub,
                processes.gateway(
                    f"sqlite:///{folder}/bench.db", stub.url, folder, api=api
                ) as server,
            ):
                asyncio.run(_measure(report, server, api, sessions, is_short=is_short))


async def _fill(
    path: Path, items: tuple[int, ...] = ITEMS, turns: tuple[int, ...] = LENGTHS
) -> dict[str, dict[int, str]]:
    """Create conversations with these numbers of items and sessions with these of turns."""
    sessions: dict[str, dict[int, str]] = {"items": {}, "turns": {}}
    async with holdfast.open(f"sqlite:///{path}") as engine:
        for count in items:
            session = await engine.session(f"items-{count}")
            for _ in range(0, count, 100):
                batch = [{"role": "user", "content": f"note {n}"} for n in range(min(100, count))]
                await session.append(batch)
            sessions["items"][count] = session.id
        for count in turns:
            session = await engine.session(f"turns-{count}")
            for number in range(count):
                await session.append(exchange(number))
            sessions["turns"][count] = session.id
        for size in REWINDS:
            session = await engine.session(f"rewinds-{size}")
            for number in range(_REWOUND_TURNS):
                await session.append(exchange(number))
    return sessions


async def _measure(
    report: Report, server: Server, api: str, sessions: dict[str, dict[int, str]], *, is_short: bool
) -> None:
    connection = await Connection.open(server.port)
    try:
        bench = _Bench(report, server, connection, api, 2 if is_short else REPEATS)
        for size in (2,) if is_short else REWINDS:
            await _measure_rewinds(bench, size)
        for size in (2,) if is_short else DEPTHS:
            await _measure_forks(bench, size)
        for size, session in sessions["items"].items():
            await _measure_items(bench, size, session)
        for size, session in sessions["turns"].items():
            await _measure_reads(bench, size, session)
    finally:
        await connection.close()


async def _measure_rewinds(bench: _Bench, size: int) -> None:
    key = f"rewinds-{max(size, REWINDS[0])}"

    async def operation(_: int) -> None:
        await regenerate(bench.connection, bench.api, key, _REWOUND_TURNS)

    for number in range(size):
        await operation(number)
    await bench.measure("regenerate", "rewinds", size, operation)


async def _measure_forks(bench: _Bench, size: int) -> None:
    session = await fork_chain(bench.connection, bench.api, size)
    await bench.measure(
        "turn", "fork depth", size,
        lambda n: take_turn(bench.connection, bench.api, f"again {n}", session=session),
    )  # fmt: skip
    path = f"/v1/sessions/{session}/fork"
    await bench.measure(
        "fork", "fork depth", size, lambda _: bench.connection.call("POST", path, {})
    )


async def _measure_items(bench: _Bench, size: int, session: str) -> None:
    path = f"/v1/conversations/conv_{session.removeprefix('ses_')}/items"
    items = [{"type": "message", "role": "user", "content": f"note {n}"} for n in range(BATCH)]
    await bench.measure(
        f"add {BATCH} items", "items", size,
        lambda _: bench.connection.call("POST", path, {"items": items}),
    )  # fmt: skip


async def _measure_reads(bench: _Bench, size: int, session: str) -> None:
    path = f"/v1/sessions/{session}/items?limit=20"
    page = (await bench.connection.call("GET", path)).json()
    await bench.measure(
        "page of 20", "turns", size,
        lambda _: bench.connection.call("GET", f"{path}&after={page['last_id']}"),
    )  # fmt: skip
    body = turn_body("responses", "one to read")
    key = f"turns-{size}"
    stored = (await bench.connection.call("POST", PATHS["responses"], body, key=key)).json()
    await bench.measure(
        "retrieve", "turns", size,
        lambda _: bench.connection.call("GET", f"/v1/responses/{stored['id']}"),
    )  # fmt: skip
