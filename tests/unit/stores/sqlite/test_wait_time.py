"""Waiting is told apart from working and from being ready without a CPU."""

import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.stores.sqlite import wait_time
from holdfast.stores.sqlite.wait_time import (
    MEASURED_WAITS,
    NOTABLE_SECONDS,
    WaitTimer,
    ready_seconds,
)


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


class _Clock:
    """The time, what of it a CPU takes, and how often the system was asked for either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.ready = self.worked = 0.0
        self.asked = 0
        monkeypatch.setattr(wait_time, "ready_seconds", self._ready)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", self._worked)

    def _ready(self) -> float:
        self.asked += 1
        return self.ready

    def _worked(self) -> float:
        self.asked += 1
        return self.worked

    def wait(
        self, timer: WaitTimer, seconds: float, *, ready: float = 0.0, worked: float = 0.0
    ) -> float:
        timer.start()
        self.now += seconds
        self.ready += ready
        self.worked += worked
        return timer.stop()


def test_the_system_is_not_asked_while_waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = _Clock(monkeypatch), WaitTimer()
    assert clock.wait(timer, NOTABLE_SECONDS / 2) == pytest.approx(NOTABLE_SECONDS / 2)
    asked = clock.asked
    for _ in range(3):
        assert clock.wait(timer, NOTABLE_SECONDS / 2) == pytest.approx(NOTABLE_SECONDS / 2)
    assert clock.asked == asked


def test_after_an_unexpected_wait_the_next_ones_are_measured_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, timer = _Clock(monkeypatch), WaitTimer()
    clock.wait(timer, 0.0)
    # How much of it was the disk is not known: by itself it must not count as slow.
    assert clock.wait(timer, 1.0, ready=0.75) == NOTABLE_SECONDS
    assert clock.wait(timer, 1.0, ready=0.75) == pytest.approx(0.25)
    for _ in range(MEASURED_WAITS - 1):
        clock.wait(timer, 0.0)
    assert clock.wait(timer, 1.0, ready=0.5) == pytest.approx(0.5)


def test_work_is_not_waited_once_waits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = _Clock(monkeypatch), WaitTimer()
    assert clock.wait(timer, 1.0, worked=1.0) == 0.0
    # A short time counts completely, and a long one by itself must not count as slow.
    short = NOTABLE_SECONDS / 2
    assert clock.wait(timer, short, worked=short) == pytest.approx(short)
    assert clock.wait(timer, 1.0, worked=1.0) == NOTABLE_SECONDS
    assert clock.wait(timer, 1.0, worked=0.75, ready=0.125) == pytest.approx(0.125)
    assert clock.wait(timer, 1.0, worked=1.0) == 0.0


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
