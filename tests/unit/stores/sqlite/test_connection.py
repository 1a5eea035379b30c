"""Files of SQLite: opened by many at once, and connections that two threads use in turn."""

import threading
from pathlib import Path

from holdfast.stores.sqlite.connection import INLINE_STEPS, DatabaseFile, ManagedConnection

ROUNDS, OPENERS = 60, 6


def test_those_who_make_a_file_at_once_all_have_it(tmp_path: Path) -> None:
    refused: list[Exception] = []
    for number in range(ROUNDS):
        together = threading.Barrier(OPENERS)

        def make(path: Path, together: threading.Barrier) -> None:
            file = DatabaseFile(str(path))
            together.wait()
            try:
                file.connect().close()
            except Exception as exc:  # noqa: BLE001 - told below
                refused.append(exc)

        given = (tmp_path / f"{number}.db", together)
        openers = [threading.Thread(target=make, args=given) for _ in range(OPENERS)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join()
    assert refused == []


def test_a_connection_comes_back_from_the_event_loop_however_often(tmp_path: Path) -> None:
    file = DatabaseFile(str(tmp_path / "a.db"))
    link = ManagedConnection(file.connect, file.identity, is_read_only=True)
    link.connection()
    # The steps of the statements that bring it back add up, too.
    for _ in range(INLINE_STEPS):
        assert link.at_once() is not None
        link.has_called = True  # by the last statement of the event loop
        assert link.connection().execute("pragma busy_timeout").fetchone() == (5_000,)
    link.close()
