"""Waiting is told apart from working and from being ready without a CPU."""

import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.stores.sqlite import wait_time
from holdfast.stores.sqlite.wait_time import NOTABLE_SECONDS, WaitTimer, ready_seconds


def test_time_spent_ready_without_a_cpu_is_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter([5.0, 65.0])
    monkeypatch.setattr(wait_time, "ready_seconds", lambda: next(ready))
    timer = WaitTimer()
    timer.start()
    threading.Event().wait(0.01)
    assert timer.stop() == 0.0


def test_a_wait_is_measured_in_full_where_ready_time_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_time, "SCHEDSTAT", "/does/not/exist")
    monkeypatch.setattr(wait_time, "_schedstat", wait_time._Schedstat())
    assert ready_seconds() == 0.0
    timer = WaitTimer()
    began = time.perf_counter()
    timer.start()
    threading.Event().wait(0.01)
    waited = timer.stop()
    assert NOTABLE_SECONDS < waited <= time.perf_counter() - began


def test_each_thread_reads_its_own_file_and_closes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "schedstat").write_text("1000 2500000000 3\n")
    monkeypatch.setattr(wait_time, "SCHEDSTAT", str(tmp_path / "schedstat"))
    monkeypatch.setattr(wait_time, "_schedstat", wait_time._Schedstat())
    found: list[tuple[float, int]] = []

    def note() -> None:
        found.append((ready_seconds(), wait_time._schedstat.file.number))

    note()
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert [seconds for seconds, _ in found] == [2.5, 2.5]
    assert found[0][1] != found[1][1]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found[1][1])
