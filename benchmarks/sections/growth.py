"""The cost of a turn as its session and its store grow, on every kind of upstream.

A long history costs every client too: the result is the CPU time that we add to that of a bare
client which sends the same bytes to the upstream.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.load import QUESTION
from benchmarks.report import Report
from benchmarks.servers import processes
from benchmarks.servers.processes import Server
from benchmarks.servers.stub import TEXT
from benchmarks.spin import Spin

TURNS = (5, 50, 200, 1000, 5000)
SESSIONS = (1000, 20_000)
REPEATS = 60
WARM_UP = 10
_WRITERS = 64


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure turns of increasingly long sessions, then turns in increasingly full stores."""
    turns = (1, 5) if is_short else TURNS
    repeats = 3 if is_short else REPEATS
    for api in ("responses", "chat"):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            asyncio.run(_fill_turns(folder / "turns.db", turns))
            with (
                processes.stub(folder) as stub,
                processes.gateway(
                    f"sqlite:///{folder}/turns.db", stub.url, folder, api=api
                ) as server,
            ):
                for count in turns:
                    _measure_turns(report, (server, stub), api, count, repeats)
    for count in (10,) if is_short else SESSIONS:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            _measure_sessions(report, Path(name), count, repeats)


def _exchange() -> list[dict[str, Any]]:
    return [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": TEXT}]


async def _fill_turns(path: Path, turns: Sequence[int]) -> None:
    """Create a session of each length, without its last turn."""
    async with holdfast.open(f"sqlite:///{path}") as engine:
        for count in turns:
            session = await engine.session(f"long-{count}")
            for _ in range(count - 1):
                await session.append(_exchange())


def _measure_turns(
    report: Report, servers: tuple[Server, Server], api: str, count: int, repeats: int
) -> None:
    server, stub = servers
    body = msgspec.json.encode(turn_body(api, QUESTION))
    asyncio.run(_times(server, api, body, f"long-{count}", min(WARM_UP, repeats)))
    spin = Spin()
    before = server.cpu_seconds()
    times = asyncio.run(_times(server, api, body, f"long-{count}", repeats))
    cpu = server.cpu_seconds() - before
    whole = _whole_body(api, count)
    client_before = time.process_time()
    direct = asyncio.run(_times(stub, api, whole, None, repeats))
    client = time.process_time() - client_before
    scale = spin.factor() / repeats * 1e6
    report.add(
        "growth",
        upstream=api,
        turns=count,
        p50_ms=statistics.median(times),
        direct_p50_ms=statistics.median(direct),
        added_ms=statistics.median(times) - statistics.median(direct),
        cpu_us=cpu * scale,
        added_cpu_us=max((cpu - client) * scale, 1.0),
    )


def _whole_body(api: str, turns: int) -> bytes:
    """Return the request that the gateway sends upstream, with about the same length."""
    history = [message for _ in range(turns) for message in _exchange()][:-1]
    if api == "responses":
        history = [{"type": "message", **message} for message in history]
    name = "messages" if api == "chat" else "input"
    return msgspec.json.encode({"model": "stub", name: history, "store": False})


async def _times(
    server: Server, api: str, body: bytes, key: str | None, repeats: int
) -> list[float]:
    connection = await Connection.open(server.port)
    times = []
    try:
        for _ in range(repeats):
            began = time.perf_counter()
            status = await connection.post(PATHS[api], body, key=key)
            times.append((time.perf_counter() - began) * 1000)
            assert status == 200, status
    finally:
        await connection.close()
    return times


async def _fill_sessions(path: Path, count: int) -> None:
    async with holdfast.open(f"sqlite:///{path}") as engine:
        numbers = iter(range(count))

        async def write() -> None:
            for number in numbers:
                session = await engine.session(f"key-{number}")
                await session.append(_exchange())

        await asyncio.gather(*(write() for _ in range(_WRITERS)))


def _measure_sessions(report: Report, folder: Path, count: int, repeats: int) -> None:
    path = folder / "sessions.db"
    asyncio.run(_fill_sessions(path, count))
    with (
        processes.stub(folder) as stub,
        processes.gateway(f"sqlite:///{path}", stub.url, folder) as server,
    ):
        asyncio.run(_turn_in_each(server, count, repeats))
        spin = Spin()
        before = server.cpu_seconds()
        times = asyncio.run(_turn_in_each(server, count, repeats))
        cpu = (server.cpu_seconds() - before) / len(times) * 1e6 * spin.factor()
        report.add("growth", sessions=count, p50_ms=statistics.median(times), cpu_us=cpu)


async def _turn_in_each(server: Server, sessions: int, turns: int) -> list[float]:
    body = msgspec.json.encode(turn_body("responses", QUESTION))
    connection = await Connection.open(server.port)
    times = []
    try:
        for number in range(turns):
            began = time.perf_counter()
            status = await connection.post(PATHS["responses"], body, key=f"key-{number % sessions}")
            times.append((time.perf_counter() - began) * 1000)
            assert status == 200, status
    finally:
        await connection.close()
    return times
