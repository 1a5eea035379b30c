"""Sessions as a library: ours beside LangGraph's savers and ADK's service, each in its own process.

The same is done with each: messages are added one by one to a session that has few or many, and
the session is read. Peers live in environments of their own; see `peers.py`. The Agents SDK's
stores are measured where they are tested, in `agents_sessions.py`, if it is there.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from tests.postgres import private_server

from benchmarks import peers
from benchmarks.report import Report

LENGTHS = (10, 1000)
APPENDS = 100
READS = 20
_SCRIPTS = Path(__file__).parent / "sessions"
_MOST_SECONDS = 120


class Case(msgspec.Struct, frozen=True):
    """Somebody who keeps sessions, and where."""

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


class Found(msgspec.Struct):
    """What a script prints for one length."""

    length: int
    appends_per_second: float
    append_p50_ms: float
    read_all_p50_ms: float


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure everybody who is there."""
    if is_short:
        _measure(report, CASES[0], "", (10,), is_short=True)
    else:
        with private_server() as server:
            for number, case in enumerate(CASES):
                # Their tables have the names of ours.
                server.execute(f"create database bench{number}")
                _measure(report, case, server.url(f"bench{number}"), LENGTHS, is_short=False)
    name = "benchmarks.agents_sessions"
    if importlib.util.find_spec(name) is not None:
        module = importlib.import_module(name)
        module.run(report, is_short=is_short)


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
                capture_output=True, text=True, check=True, timeout=_MOST_SECONDS,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as exc:
            why = str(getattr(exc, "stderr", None) or exc).strip().splitlines()
            told = next((line for line in reversed(why) if "Error" in line), why[-1])
            report.note(f"{case.name} could not be measured: {told[:200]}")
            return
    for line in done.stdout.strip().splitlines():
        found = msgspec.json.decode(line, type=Found)
        report.add("library", case=case.name, **msgspec.to_builtins(found))
