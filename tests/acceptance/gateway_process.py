"""A gateway in its own process, for tests that use the network and may kill it."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator

END_SECONDS = 100
STEADY_PORTS = range(20_000, 32_000)
"""Below the ports that Linux and macOS assign themselves."""


class GatewayProcess:
    """`holdfast serve` on a free port; `kill` is SIGKILL, `stop` is SIGTERM and waits."""

    def __init__(self, store_url: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._command = [
            sys.executable, "-m", "holdfast.cli", "serve",
            "--port", "0", "--store", store_url, *arguments,
        ]  # fmt: skip
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.output: deque[str] = deque(maxlen=10_000)
        """The last lines of output, including the log."""
        self.url = ""
        self._drain: threading.Thread | None = None

    def start(self) -> None:
        """Start the process and wait until it prints that it listens."""
        process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env,
        )
        self._process = process
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("holdfast listening on "):
                self.url = line.split()[-1]
                # Keep reading: a full pipe would block the gateway at its next log line.
                self._reader = threading.Thread(
                    target=self.output.extend, args=(process.stdout,), daemon=True
                )
                self._reader.start()
                return
        process.wait(END_SECONDS)
        process.stdout.close()
        raise AssertionError("the gateway did not start:\n" + "".join(lines))

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the process with SIGTERM and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        code = process.wait(END_SECONDS)
        if self._reader is not None:
            self._reader.join(END_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def terminate(self) -> None:
        """Send SIGTERM and do not wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def running_gateway(
    store_url: str, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[GatewayProcess]:
    """Run a gateway for the length of a block."""
    gateway = GatewayProcess(store_url, *arguments, env=env)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.kill()


def free_port() -> int:
    """Return an unused port, for a gateway that must restart on the same one.

    The system does not assign these ports to connections or to servers that ask for any port, so
    nobody takes it while the gateway is down.
    """
    while True:
        port = secrets.choice(STEADY_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
