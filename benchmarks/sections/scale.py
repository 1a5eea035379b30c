"""Several processes on one PostgreSQL: throughput, a take-over after a crash, routing."""

import asyncio
import contextlib
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import msgspec
from tests.postgres import private_server

from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.load import QUESTION, Load, LoadResult, measure
from benchmarks.report import Report
from benchmarks.sections import routing
from benchmarks.servers import peers, processes
from benchmarks.servers.processes import Server

PROCESSES = (1, 2, 4)
SECONDS = 4.0
CLIENTS = 64
_LEASE_SECONDS = 2


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure throughput with one, two and four processes, then a take-over."""
    if is_short:
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, private_server() as server:
        folder = Path(name)
        for count in PROCESSES:
            subprocess.run(["sync"], check=False)
            _measure(report, folder, server.url(), count)
        _take_over(report, folder, server.url())
        routing.measure(report, folder, server)


def _measure(report: Report, folder: Path, url: str, count: int) -> None:
    with contextlib.ExitStack() as stack:
        upstream = _upstream(stack, folder)
        servers = [
            stack.enter_context(processes.gateway(url, upstream.url, folder)) for _ in range(count)
        ]
        found: list[LoadResult] = []

        def run_load(server: Server, number: int) -> None:
            own = folder / f"load-{number}"
            own.mkdir(exist_ok=True)
            load = Load(
                clients=CLIENTS // count, seconds=SECONDS, prefix=f"scale-{count}-{number}-"
            )
            found.append(measure(server, load, own))

        threads = [
            threading.Thread(target=run_load, args=(server, number))
            for number, server in enumerate(servers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report.add(
            "scale",
            processes=count,
            requests_per_second=sum(result.requests_per_second for result in found),
            p50_ms=max(result.p50_ms for result in found),
            p99_ms=max(result.p99_ms for result in found),
            cpu_us=sum(result.cpu_us * result.requests for result in found)
            / max(sum(result.requests for result in found), 1),
            failures=sum(result.failures for result in found),
        )


def _upstream(stack: contextlib.ExitStack, folder: Path) -> Server:
    if peers.tool("nginx"):
        return stack.enter_context(peers.nginx_upstream(folder))
    return stack.enter_context(processes.stub(folder))


def _take_over(report: Report, folder: Path, url: str) -> None:
    """Kill a process during its turns; time another one until it answers on the same keys."""
    env = {"HOLDFAST_LANES_LEASE_SECONDS": str(_LEASE_SECONDS)}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(processes.stub(folder))
        first = stack.enter_context(processes.gateway(url, upstream.url, folder, env=env))
        second = stack.enter_context(processes.gateway(url, upstream.url, folder, env=env))
        asyncio.run(_begin_streams(first, 20))
        first.kill()
        began = time.perf_counter()
        statuses = asyncio.run(_turn_in_each(second, 20))
        report.add(
            "scale",
            case=f"20 lanes taken over from a killed process, leases of {_LEASE_SECONDS} s",
            seconds=time.perf_counter() - began,
            answered=sum(status == 200 for status in statuses),
        )


async def _begin_streams(server: Server, count: int) -> None:
    """Begin streams and return when each holds its lane."""
    body = msgspec.json.encode(turn_body("responses", QUESTION, stream=True))
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-key: lane-{number}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def _turn_in_each(server: Server, count: int) -> list[int]:
    body = msgspec.json.encode(turn_body("responses", QUESTION))

    async def take_turn(number: int) -> int:
        connection = await Connection.open(server.port)
        try:
            return await connection.post(PATHS["responses"], body, key=f"lane-{number}")
        finally:
            await connection.close()

    return list(await asyncio.gather(*(take_turn(number) for number in range(count))))
