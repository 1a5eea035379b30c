"""Server processes: started on a free port, measured from outside, stopped."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.servers.stub import PACE_SECONDS

START_SECONDS = 120.0
STOP_SECONDS = 20.0
IDLE_SECONDS = 30.0
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Return a free port outside the range that the system assigns by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process: from its CPU clock, because `/proc` counts 10 ms ticks."""
    try:
        return time.clock_gettime((~process.pid) << 3 | 2)
    except OSError:  # not on Linux
        times = process.cpu_times()
        return float(times.user + times.system)


class Server:
    """A running server process."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._process = process
        self._psutil = psutil.Process(process.pid)
        self.pid = process.pid
        self.port = port
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        self.seconds_to_start = 0.0

    def _family(self) -> list[psutil.Process]:
        return [self._psutil, *self._psutil.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process and its children so far."""
        return sum(_cpu_seconds(process) for process in self._family())

    def wait_until_idle(self) -> None:
        """Wait until the process uses less than 2 % of a core, for at most `IDLE_SECONDS`."""
        until = time.perf_counter() + IDLE_SECONDS
        before = self.cpu_seconds()
        while time.perf_counter() < until:
            time.sleep(0.5)
            now = self.cpu_seconds()
            if now - before < 0.01:
                return
            before = now

    def rss_mb(self) -> float:
        """Return the resident memory of the process and its children."""
        return float(sum(process.memory_info().rss for process in self._family())) / 1e6

    def kill(self) -> None:
        """Kill the process without warning."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Stop the process; kill it and its children if they do not stop in time."""
        if self._process.poll() is not None:
            return
        family = self._family()
        self._process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=STOP_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(STOP_SECONDS)

    def wait_until_ready(self, path: str, began: float) -> None:
        """Wait until the server answers a GET."""
        while time.perf_counter() - began < START_SECONDS:
            if self._process.poll() is not None:
                break
            if _responds(self.port, path):
                self.seconds_to_start = time.perf_counter() - began
                return
            time.sleep(0.005)
        raise RuntimeError(f"a server did not start:\n{self.log.read_text()[-3000:]}")


def _responds(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.settimeout(10)
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            return connection.recv(16).startswith(b"HTTP/1.1 ")
    except OSError:
        return False


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    folder: Path,
    *,
    ready: str = "/",
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server for the length of a block."""
    log = folder / f"server-{port}.log"
    # An installed package has compiled modules: let Python write them.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            env={**inherited, **(env or {})},
        )  # fmt: skip
    server = Server(process, port, log)
    try:
        server.wait_until_ready(ready, began)
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def gateway(
    store_url: str,
    upstream: str,
    folder: Path,
    *,
    api: str = "responses",
    python: str = sys.executable,
    launcher: Sequence[str] = ("-m", "holdfast.cli"),
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `holdfast serve` in front of an upstream that uses `api`."""
    port = free_port()
    command = [
        python, *launcher, "serve", "--port", str(port), "--store", store_url,
        "--upstream", f"{upstream}/v1", "--upstream-api", api,
    ]  # fmt: skip
    path = {"PYTHONPATH": str(ROOT)}
    with running(command, port, folder, ready="/readyz", env={**path, **(env or {})}) as server:
        yield server


@contextlib.contextmanager
def stub(folder: Path, pace_seconds: float = PACE_SECONDS) -> Iterator[Server]:
    """Run the upstream stub."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.servers.stub", str(port), str(pace_seconds)]
    with running(command, port, folder, env={"PYTHONPATH": str(ROOT)}) as server:
        yield server


@contextlib.contextmanager
def bare_turn(folder: Path, upstream: Server, path: str) -> Iterator[Server]:
    """Run the server that does the minimum work of a durable turn."""
    port = free_port()
    command = [
        sys.executable, "-m", "benchmarks.servers.bare_turn", str(port), str(upstream.port), path,
        str(folder / f"bare-{port}.db"),
    ]  # fmt: skip
    with running(command, port, folder, env={"PYTHONPATH": str(ROOT)}) as server:
        yield server
