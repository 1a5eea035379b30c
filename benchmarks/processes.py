"""Servers as processes of their own: started on a free port, measured from outside, stopped."""

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

START_SECONDS = 90.0
STOP_SECONDS = 20.0
IDLE_SECONDS = 30.0


def free_port() -> int:
    """Return a port that nobody listens on, nor is given to anybody who asks for any port."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._process = process
        self._known = psutil.Process(process.pid)
        self.port = port
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        self.seconds_to_start = 0.0

    def _family(self) -> list[psutil.Process]:
        return [self._known, *self._known.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Return the processor time that it and its children took so far."""
        times = [one.cpu_times() for one in self._family()]
        return float(sum(one.user + one.system for one in times))

    def until_idle(self) -> None:
        """Wait until it has nothing left to do, for a while at most.

        A single stream takes a few hundredths of a processor: that is not idle.
        """
        until = time.perf_counter() + IDLE_SECONDS
        before = self.cpu_seconds()
        while time.perf_counter() < until:
            time.sleep(0.5)
            now = self.cpu_seconds()
            if now - before < 0.01:
                return
            before = now

    def rss_mb(self) -> float:
        """Return the memory that it and its children hold."""
        return float(sum(one.memory_info().rss for one in self._family())) / 1e6

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Ask it to stop, and insist."""
        if self._process.poll() is not None:
            return
        family = self._family()
        self._process.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=STOP_SECONDS)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait(STOP_SECONDS)

    def until_ready(self, path: str, began: float) -> None:
        """Wait until it answers."""
        while time.perf_counter() - began < START_SECONDS:
            if self._process.poll() is not None:
                break
            if _answers(self.port, path):
                self.seconds_to_start = time.perf_counter() - began
                return
            time.sleep(0.005)
        raise RuntimeError(f"a server did not start:\n{self.log.read_text()[-3000:]}")


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            line.settimeout(10)
            line.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            return line.recv(16).startswith(b"HTTP/1.1 ")
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
    # Compiled modules are kept, as they are wherever it is installed.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as out:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=out, stderr=subprocess.STDOUT, env={**inherited, **(env or {})},
            cwd=folder,
        )  # fmt: skip
    server = Server(process, port, log)
    try:
        server.until_ready(ready, began)
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def gateway(
    store_url: str, upstream: str, folder: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run our gateway in front of an upstream."""
    port = free_port()
    command = [
        sys.executable, "-m", "holdfast.cli", "serve", "--port", str(port), "--store", store_url,
        "--upstream", f"{upstream}/v1",
    ]  # fmt: skip
    with running(command, port, folder, ready="/readyz", env=env) as server:
        yield server


@contextlib.contextmanager
def stub(folder: Path) -> Iterator[Server]:
    """Run the upstream that answers at once and streams."""
    port = free_port()
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "benchmarks.stub", str(port)]
    env = {"PYTHONPATH": str(root)}
    with running(command, port, folder, env=env) as server:
        yield server
