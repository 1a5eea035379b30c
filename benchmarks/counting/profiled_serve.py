"""Run `holdfast` with counters for Python calls, Python lines and SQLite work.

`python -m benchmarks.counting.profiled_serve CONTROL serve --port …` behaves as `holdfast serve …`.
It observes the process through the interpreter and the `sqlite3` module. Counts must not depend on
the machine: all short commits are made on the event loop, however slow the disk is, a turn that may
wait for a commit to join does so, short reads do not count their bytes, and nothing is done at
regular times, however long an operation takes. A client that connects to the Unix socket CONTROL
gets the counters as one line of JSON, once the process is idle.
"""

import importlib.util
import json
import math
import os
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Any

QUIET_SECONDS = 0.01
"""The counters are read when they have not changed for this long."""
STEP_SIZE = 10
"""SQLite reports every so many instructions of its virtual machine."""
NEVER_SECONDS = 24 * 3600.0
"""Longer than any measurement."""
THREADS = "/proc/self/task"


class Counters:
    """Counts of the work of this process."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._is_own: dict[CodeType, bool] = {}
        self._folders: dict[CodeType, str] = {}
        self._folder = ""
        self.functions: Counter[CodeType] = Counter()
        self.calls = 0
        self.package_changes = 0
        self.lines = 0
        self.statements = 0
        self.steps = 0

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call event of a function, coroutine or generator in our packages."""
        if event == "call" and self._owns(frame.f_code):
            self.calls += 1
            self.functions[frame.f_code] += 1
            folder = self._folders.get(frame.f_code)
            if folder is None:
                folder = self._folders[frame.f_code] = os.path.dirname(frame.f_code.co_filename)
            self.package_changes += folder != self._folder
            self._folder = folder

    def trace(self, frame: FrameType, _event: str, _: Any) -> Any:
        """Count the lines of functions in our packages: loops without calls count as well."""
        return self._line if self._owns(frame.f_code) else None

    def _line(self, _frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._line

    def _owns(self, code: CodeType) -> bool:
        is_own = self._is_own.get(code)
        if is_own is None:
            is_own = self._is_own[code] = code.co_filename.startswith(self._package)
        return is_own

    def observe(self, connection: sqlite3.Connection) -> None:
        """Count the statements of a connection and the steps of SQLite's virtual machine."""
        connection.set_trace_callback(self._statement)
        connection.set_progress_handler(self._step, STEP_SIZE)

    def _statement(self, _: str) -> None:
        self.statements += 1

    def _step(self) -> int:
        self.steps += 1
        return 0

    def totals(self) -> dict[str, int]:
        """Return the counters."""
        return {
            "calls": self.calls, "lines": self.lines, "statements": self.statements,
            "steps": self.steps, "package_changes": self.package_changes,
        }  # fmt: skip

    def by_function(self) -> dict[str, int]:
        """Return the calls of each function."""
        root = len(self._package)
        found: Counter[str] = Counter()
        for code, count in list(self.functions.items()):
            found[f"{code.co_filename[root:]}:{code.co_qualname}"] += count
        return dict(found)


def _observe_sqlite(counters: Counters) -> None:
    connect = sqlite3.connect

    def observed(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        counters.observe(connection)
        return connection

    setattr(sqlite3, "connect", observed)  # noqa: B010  # assigned past the overloads


def _settled(counters: Counters) -> dict[str, int]:
    """Return the counters once the process is idle, however long it waits for a processor."""
    while True:
        before = counters.totals()
        time.sleep(QUIET_SECONDS)
        if counters.totals() == before and not _is_busy():
            return before


def _is_busy() -> bool:
    """Whether another thread works, waits for the disk, or is ready and has not got a CPU yet."""
    if not os.path.isdir(THREADS):
        return False
    own = str(threading.get_native_id())
    return any(_state(thread) in "RD" for thread in os.listdir(THREADS) if thread != own)


def _state(thread: str) -> str:
    """Return the state of a thread as Linux writes it: R is ready or running, D is in the disk."""
    try:
        with open(f"{THREADS}/{thread}/stat") as file:
            return file.read().rpartition(") ")[2][0]
    except OSError:
        return "X"  # it has ended


def _answer(listener: socket.socket, counters: Counters) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            value = {"totals": _settled(counters), "functions": counters.by_function()}
            connection.sendall(json.dumps(value).encode())


def _keep_quiet() -> None:
    """Make all short commits at once, and do nothing at regular times."""
    from holdfast.channels import delivery
    from holdfast.engine.maintenance import usage_counter
    from holdfast.engine.sessions import worker
    from holdfast.engine.streaming import journal_writer
    from holdfast.http.request import auth
    from holdfast.http.server import run as http_server
    from holdfast.schedules import service as schedules
    from holdfast.stores.commit import group_commit
    from holdfast.stores.sqlite import driver, inline_commit

    # They are constants elsewhere.
    setattr(inline_commit, "QUICK_SECONDS", math.inf)  # noqa: B010
    setattr(inline_commit, "NOTABLE_SECONDS", math.inf)  # noqa: B010
    setattr(driver, "NOTABLE_SECONDS", math.inf)  # noqa: B010  # a binding of its own
    setattr(driver, "COUNT_AFTER_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(group_commit, "MAX_DELAY", NEVER_SECONDS)  # noqa: B010
    setattr(journal_writer, "CHECKPOINT_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(worker, "DEAD_WORKER_POLL_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(usage_counter, "POLL_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(auth, "REFRESH_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(delivery, "IDLE_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(schedules, "IDLE_SECONDS", NEVER_SECONDS)  # noqa: B010
    setattr(http_server, "DATE_SECONDS", NEVER_SECONDS)  # noqa: B010
    os.environ["HOLDFAST_LANES_LEASE_SECONDS"] = str(NEVER_SECONDS)
    os.environ["HOLDFAST_LANES_POLL_SECONDS"] = str(NEVER_SECONDS)


def main() -> None:
    """Install the counters, then run the command line."""
    control = sys.argv.pop(1)
    found = importlib.util.find_spec("holdfast")
    assert found is not None
    assert found.origin is not None
    counters = Counters(os.path.dirname(found.origin) + os.sep)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(control)
    listener.listen()
    # Started before the profiler is installed, so that it is not counted.
    threading.Thread(target=_answer, args=(listener, counters), daemon=True).start()
    _observe_sqlite(counters)
    threading.setprofile(counters.profile)
    threading.settrace(counters.trace)
    from holdfast.cli import main as run

    _keep_quiet()
    sys.settrace(counters.trace)
    sys.setprofile(counters.profile)
    run()


if __name__ == "__main__":
    main()
