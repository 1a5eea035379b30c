"""Sessions as a library: ours, LangGraph's savers and ADK's service, each in its own process.

Each adds messages one by one to a short and to a long session and reads it. Peers have their own
environments; see `servers/peers.py`. `agents_sessions.py` measures the Agents SDK's sessions.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from tests.postgres import private_server

from benchmarks.report import Report
from benchmarks.sections import agents_sessions
from benchmarks.servers import peers

LENGTHS = (10, 1000)
APPENDS = 100
READS = 20
_SCRIPTS = Path(__file__).parents[1] / "libraries"
_MAX_SECONDS = 120


class Case(msgspec.Struct, frozen=True):
    """A library that stores sessions, and its database."""

    name: str
    peer: str | None
    script: str
    store: str


CASES = (
    Case("holdfast, SQLite", None, "holdfast_sessions.py", "sqlite"),
    Case("LangGraph, SQLite", "langgraph", "langgraph_saver.py", "sqlite"),
    Case("ADK, SQLite", "adk", "adk_service.py", "sqlite"),
    Case("holdfast, PostgreSQL", None, "holdfast_sessions.py", "postgres"),
    Case("LangGraph, PostgreSQL", "langgraph", "langgraph_saver.py", "postgres"),
    Case("ADK, PostgreSQL", "adk", "adk_service.py", "postgres"),
)


class Measurement(msgspec.Struct):
    """The output of a script for one session length."""

    length: int
    appends_per_second: float
    append_p50_ms: float
    read_all_p50_ms: float


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every library that is installed."""
    if is_short:
        _measure(report, CASES[0], "", (10,), is_short=True)
    else:
        with private_server() as server:
            for number, case in enumerate(CASES):
                # The libraries use the same table names.
                server.execute(f"create database bench{number}")
                _measure(report, case, server.url(f"bench{number}"), LENGTHS, is_short=False)
    agents_sessions.run(report, is_short=is_short)


def _measure(
    report: Report, case: Case, postgres: str, lengths: tuple[int, ...], *, is_short: bool
) -> None:
    python = Path(sys.executable) if case.peer is None else peers.python_of(case.peer)
    if python is None:
        report.note(f"{case.name} is absent")
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        where = f"{folder}/sessions.db" if case.store == "sqlite" else postgres
        counts = (1, 1) if is_short else (APPENDS, READS)
        try:
            done = subprocess.run(
                [str(python), str(_SCRIPTS / case.script), where, *map(str, counts),
                 *map(str, lengths)],
                capture_output=True, text=True, check=True, timeout=_MAX_SECONDS,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as exc:
            lines = str(getattr(exc, "stderr", None) or exc).strip().splitlines()
            reason = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            report.note(f"{case.name} could not be measured: {reason[:200]}")
            return
    for line in done.stdout.strip().splitlines():
        found = msgspec.json.decode(line, type=Measurement)
        report.add("library", case=case.name, **msgspec.to_builtins(found))
