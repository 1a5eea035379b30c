"""The gateway beside the bare parts and the peers: requests, latency, processor time, memory.

Whole answers come from nginx where it is installed, so that no upstream is ever the bottleneck;
streams come from our stub, one event at a time.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from benchmarks import peers, processes
from benchmarks.load import Measured, Shape, measure
from benchmarks.processes import Server
from benchmarks.report import Report
from benchmarks.stub import CHUNKS

CLIENTS = (1, 8, 32, 128)
SECONDS = 2.0
Start = Callable[[Path, Server], AbstractContextManager[Server]]


@contextlib.contextmanager
def ours(folder: Path, behind: Server) -> Iterator[Server]:
    """Run our gateway on a fresh SQLite file, with its defaults but for the length of a queue."""
    path = tempfile.mkdtemp(dir=folder)
    # One key with 128 clients is a queue of 127.
    env = {"HOLDFAST_LANES_MAX_WAITING": "1000"}
    with processes.gateway(f"sqlite:///{path}/bench.db", behind.url, folder, env=env) as server:
        yield server


@contextlib.contextmanager
def direct(_: Path, behind: Server) -> Iterator[Server]:
    """The upstream itself."""
    yield behind


def _systems(*, is_stream: bool, is_short: bool) -> dict[str, Start]:
    systems: dict[str, Start] = {"stub": direct}
    if not is_short and peers.tool("nginx"):
        systems["nginx"] = lambda folder, behind: peers.nginx_proxy(
            folder, behind, is_stream=is_stream
        )
    systems["holdfast"] = ours
    if not is_short and peers.python_of("plain"):
        systems["plain gateway"] = peers.plain
    if not is_short and peers.python_of("litellm"):
        systems["LiteLLM"] = peers.litellm
    return systems


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every system in every shape."""
    if not is_short:
        peers.tool("wrk")
    clients = (2,) if is_short else CLIENTS
    seconds = 0.3 if is_short else SECONDS
    for is_stream in (False, True):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            with _upstream(folder, is_stream=is_stream, is_short=is_short) as behind:
                for system, start in _systems(is_stream=is_stream, is_short=is_short).items():
                    shape = Shape(is_stream=is_stream, seconds=seconds)
                    _measure(report, system, start, (folder, behind), shape, clients)


def _upstream(folder: Path, *, is_stream: bool, is_short: bool) -> AbstractContextManager[Server]:
    if is_stream or is_short or not peers.tool("nginx"):
        return processes.stub(folder)
    return peers.nginx_upstream(folder)


def _measure(
    report: Report, system: str, start: Start, place: tuple[Path, Server], shape: Shape,
    clients: tuple[int, ...],
) -> None:  # fmt: skip
    folder, behind = place
    if system == "LiteLLM":
        shape = msgspec.structs.replace(
            shape, path="/v1/chat/completions", authorization=f"Bearer {peers.LITELLM_KEY}"
        )
    try:
        with start(folder, behind) as server:
            for count in clients:
                many = msgspec.structs.replace(shape, connections=count)
                _add(report, system, many, measure(server, many, folder), keys="many")
            if system != "holdfast":
                return
            for count in clients:
                one = msgspec.structs.replace(
                    shape, connections=count, keys=1, prefix=f"one-{count}-"
                )
                _add(report, system, one, measure(server, one, folder), keys="one")
    except RuntimeError as exc:
        report.note(f"{system} is absent: {str(exc).splitlines()[0]}")


def _add(report: Report, system: str, shape: Shape, found: Measured, *, keys: str) -> None:
    row = {
        "system": system,
        "case": "stream" if shape.is_stream else "whole",
        "keys": keys,
        "clients": shape.connections,
        "requests_per_second": found.requests_per_second,
        "p50_ms": found.p50_ms,
        "p99_ms": found.p99_ms,
        "cpu_us": found.cpu_us,
        "rss_mb": found.rss_mb,
        "failures": found.failures,
    }
    if shape.is_stream:
        row["cpu_us_per_chunk"] = found.cpu_us / CHUNKS
    report.add("gateway", **row)
