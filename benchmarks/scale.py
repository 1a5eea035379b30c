"""Several processes on one PostgreSQL: what they do together, and how one takes over."""

import asyncio
import contextlib
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import msgspec
from tests.postgres import private_server

from benchmarks import peers, processes
from benchmarks.load import QUESTION, Line, Measured, Shape, measure
from benchmarks.processes import Server
from benchmarks.report import Report

PROCESSES = (1, 2, 4)
SECONDS = 4.0
CLIENTS = 64
_LEASE_SECONDS = 2


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure throughput with more and more processes, then a take-over."""
    if is_short:
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, private_server() as server:
        folder = Path(name)
        for count in PROCESSES:
            subprocess.run(["sync"], check=False)
            _measure(report, folder, server.url(), count)
        _take_over(report, folder, server.url())


def _measure(report: Report, folder: Path, url: str, count: int) -> None:
    with contextlib.ExitStack() as stack:
        behind = _upstream(stack, folder)
        servers = [
            stack.enter_context(processes.gateway(url, behind.url, folder)) for _ in range(count)
        ]
        found: list[Measured] = []

        def load(server: Server, number: int) -> None:
            own = folder / f"load-{number}"
            own.mkdir(exist_ok=True)
            shape = Shape(
                connections=CLIENTS // count, seconds=SECONDS, prefix=f"scale-{count}-{number}-"
            )
            found.append(measure(server, shape, own))

        threads = [
            threading.Thread(target=load, args=(server, number))
            for number, server in enumerate(servers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report.add(
            "scale",
            processes=count,
            requests_per_second=sum(one.requests_per_second for one in found),
            p50_ms=max(one.p50_ms for one in found),
            p99_ms=max(one.p99_ms for one in found),
            cpu_us=sum(one.cpu_us * one.requests for one in found)
            / max(sum(one.requests for one in found), 1),
            failures=sum(one.failures for one in found),
        )


def _upstream(stack: contextlib.ExitStack, folder: Path) -> Server:
    if peers.tool("nginx"):
        return stack.enter_context(peers.nginx_upstream(folder))
    return stack.enter_context(processes.stub(folder))


def _take_over(report: Report, folder: Path, url: str) -> None:
    """Kill a process in the middle of its turns; time until another answers on the same keys."""
    env = {"HOLDFAST_LANES_LEASE_SECONDS": str(_LEASE_SECONDS)}
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(processes.stub(folder))
        first = stack.enter_context(processes.gateway(url, behind.url, folder, env=env))
        second = stack.enter_context(processes.gateway(url, behind.url, folder, env=env))
        asyncio.run(_leave_in_the_middle(first, 20))
        first.kill()
        began = time.perf_counter()
        statuses = asyncio.run(_ask_each(second, 20))
        report.add(
            "scale",
            case=f"20 lanes taken over from a killed process, leases of {_LEASE_SECONDS} s",
            seconds=time.perf_counter() - began,
            answered=sum(status == 200 for status in statuses),
        )


async def _leave_in_the_middle(server: Server, count: int) -> None:
    """Begin streams, and return once each has its lane."""
    body = msgspec.json.encode({"model": "stub", "input": QUESTION, "stream": True})
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-key: lane-{number}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def _ask_each(server: Server, count: int) -> list[int]:
    body = msgspec.json.encode({"model": "stub", "input": QUESTION})

    async def ask(number: int) -> int:
        line = await Line.open(server.port)
        try:
            return await line.post("/v1/responses", body, key=f"lane-{number}")
        finally:
            await line.close()

    return list(await asyncio.gather(*(ask(number) for number in range(count))))
