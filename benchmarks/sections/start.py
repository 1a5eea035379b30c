"""Start times: an import, `--version`, and a server until it answers."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Report
from benchmarks.servers import processes

ROUNDS = 5
CASES = {
    "python (nothing)": ["-c", "pass"],
    "import holdfast": ["-c", "import holdfast"],
    "holdfast --version": ["-m", "holdfast.cli", "--version"],
}


def run(report: Report, *, is_short: bool = False) -> None:
    """Time each case; the result is the median of several rounds."""
    rounds = 1 if is_short else ROUNDS
    for name, arguments in CASES.items():
        report.add("start", case=name, seconds=_median(arguments, rounds))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        times = [_serve(Path(folder), number) for number in range(rounds)]
    report.add("start", case="holdfast serve", seconds=statistics.median(times))


def _median(arguments: list[str], rounds: int) -> float:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=env)
        times.append(time.perf_counter() - began)
    # The first round may compile modules.
    return statistics.median(times[1:])


def _serve(folder: Path, number: int) -> float:
    """Return the time from starting a gateway to its first answer."""
    url = f"sqlite:///{folder}/start-{number}.db"
    with processes.gateway(url, "http://127.0.0.1:9", folder) as server:
        return server.seconds_to_start
