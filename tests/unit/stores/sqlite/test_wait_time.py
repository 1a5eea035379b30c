"""How long a thread was ready without a CPU."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.stores.sqlite import inline_commit
from holdfast.stores.sqlite.inline_commit import ready_seconds


def test_each_thread_reads_its_own_file_and_closes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "schedstat").write_text("1000 2500000000 3\n")
    monkeypatch.setattr(inline_commit, "SCHEDSTAT", str(tmp_path / "schedstat"))
    monkeypatch.setattr(inline_commit, "_schedstat", inline_commit._Schedstat())
    found: list[tuple[float, int]] = []

    def note() -> None:
        found.append((ready_seconds(), inline_commit._schedstat.file.number))

    note()
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert [seconds for seconds, _ in found] == [2.5, 2.5]
    assert found[0][1] != found[1][1]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found[1][1])
