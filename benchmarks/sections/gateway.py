"""The gateway compared with bare parts and peers: throughput, latency, CPU time and memory.

Whole answers come from nginx if it is installed, so that no upstream is the bottleneck; streams
come from our stub, one event at a time.
"""

import contextlib
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from benchmarks.http_client import PATHS
from benchmarks.load import KNOWN_KEYS, Load, LoadResult, measure, prepare
from benchmarks.report import Report
from benchmarks.servers import peers, processes, stateful_peers
from benchmarks.servers.processes import Server
from benchmarks.servers.stub import CHUNKS

CLIENTS = (1, 8, 32, 128)
FEW_CLIENTS = (1, 32)
SECONDS = 2.0
STREAMS_PER_CLIENT = 6
PEER_REQUESTS = 24
BEFORE = "holdfast before"
"""The gateway of another checkout; see `--before`."""
KINDS = ("responses", "chat")
Start = Callable[[Path, Server], AbstractContextManager[Server]]


def _ours(api: str, python: str = sys.executable) -> Start:
    @contextlib.contextmanager
    def start(folder: Path, upstream: Server) -> Iterator[Server]:
        path = tempfile.mkdtemp(dir=folder)
        # All clients of the hot key wait in one lane.
        env = {"HOLDFAST_LANES_MAX_WAITING": "1000"}
        url = f"sqlite:///{path}/bench.db"
        with processes.gateway(
            url, upstream.url, folder, api=api, python=python, env=env
        ) as server:
            yield server

    return start


@contextlib.contextmanager
def _direct(_: Path, upstream: Server) -> Iterator[Server]:
    yield upstream


def _systems(api: str, *, is_stream: bool, is_short: bool) -> dict[str, Start]:
    systems: dict[str, Start] = {"stub": _direct}
    if not is_stream:
        systems["bare turn"] = lambda folder, upstream: processes.bare_turn(
            folder, upstream, PATHS[api]
        )
    if is_short:
        return systems | {"holdfast": _ours(api)}
    if peers.tool("nginx"):
        systems["nginx"] = lambda folder, upstream: peers.nginx_proxy(
            folder, upstream, is_stream=is_stream
        )
    systems["holdfast"] = _ours(api)
    if api == "responses" and peers.python_of("plain"):
        systems["plain gateway"] = peers.plain
    if api == "chat" and peers.python_of("litellm"):
        systems["LiteLLM"] = peers.litellm
    return systems


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every system with every kind of upstream, whole and streamed."""
    if not is_short:
        peers.tool("wrk")
    for api in KINDS:
        for is_stream in (False, True):
            load = Load(api=api, is_stream=is_stream, seconds=0.3 if is_short else SECONDS)
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
                folder = Path(name)
                systems = _systems(api, is_stream=is_stream, is_short=is_short)
                if report.before is not None:
                    systems[BEFORE] = _ours(api, report.before)
                with _upstream(folder, is_stream=is_stream, is_short=is_short) as upstream:
                    for system, start in systems.items():
                        _measure_system(report, system, start, (folder, upstream), load)
    if not is_short:
        _measure_stateful_peers(report)


def _upstream(folder: Path, *, is_stream: bool, is_short: bool) -> AbstractContextManager[Server]:
    if is_stream or is_short or not peers.tool("nginx"):
        return processes.stub(folder)
    return peers.nginx_upstream(folder)


def _measure_system(
    report: Report, system: str, start: Start, place: tuple[Path, Server], load: Load
) -> None:
    folder, upstream = place
    is_short = load.seconds < 1
    if system == "LiteLLM":
        load = msgspec.structs.replace(load, authorization=f"Bearer {peers.LITELLM_KEY}")
    try:
        with start(folder, upstream) as server:
            if system not in ("holdfast", BEFORE):
                for keys in ("known", "hot") if system == "bare turn" else ("known",):
                    for clients in (2,) if is_short else FEW_CLIENTS:
                        _measure(report, system, server, folder, load, keys, clients)
                return
            load = msgspec.structs.replace(load, prefix=f"{secrets.token_hex(3)}-")
            prepare(server, load, 16 if is_short else KNOWN_KEYS)
            for clients in (2,) if is_short else CLIENTS:
                _measure(report, system, server, folder, load, "known", clients)
            for keys in ("first", "hot"):
                for clients in (2,) if is_short else FEW_CLIENTS:
                    _measure(report, system, server, folder, load, keys, clients)
    except RuntimeError as exc:
        report.note(f"{system} is absent: {str(exc).splitlines()[0]}")


def _measure(
    report: Report,
    system: str,
    server: Server,
    folder: Path,
    load: Load,
    keys: str,
    clients: int,
) -> None:
    if load.is_stream:
        load = msgspec.structs.replace(load, requests=clients * STREAMS_PER_CLIENT)
    load = msgspec.structs.replace(load, keys=keys, clients=clients)
    _add(report, system, load, measure(server, load, folder))


def _add(report: Report, system: str, load: Load, result: LoadResult) -> None:
    row = {
        "system": system,
        "upstream": load.api,
        "case": "stream" if load.is_stream else "whole",
        "keys": load.keys,
        "clients": load.clients,
        "requests_per_second": result.requests_per_second,
        "p50_ms": result.p50_ms,
        "p99_ms": result.p99_ms,
        "cpu_us": result.cpu_us,
        "raw_cpu_us": result.raw_cpu_us,
        "rss_mb": result.rss_mb,
        "failures": result.failures,
    }
    if load.is_stream:
        row["cpu_us_per_chunk"] = result.cpu_us / CHUNKS
    report.add("gateway", **row)


def _measure_stateful_peers(report: Report) -> None:
    """Measure the peers that also keep sessions; they are slow, so each gets one short load."""
    for peer in stateful_peers.installed():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            folder = Path(name)
            load = Load(
                api=peer.api, requests=PEER_REQUESTS, authorization=peer.authorization,
                key_header=peer.key_header, model=peer.model,
            )  # fmt: skip
            try:
                # They request streams from their upstream, which must not slow them down.
                with (
                    processes.stub(folder, 0.0) as upstream,
                    peer.start(folder, upstream) as server,
                ):
                    # The first request imports what the others use: that takes seconds in some of
                    # them.
                    prepare(server, load, 1)
                    for keys in ("hot", "first") if peer.has_keys else ("first",):
                        _measure(report, peer.name, server, folder, load, keys, 1)
                    _measure(report, peer.name, server, folder, load, "first", 8)
            except RuntimeError as exc:
                report.note(f"{peer.name} is absent: {str(exc).splitlines()[0]}")
