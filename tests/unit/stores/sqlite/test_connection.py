"""Files of SQLite: opened by many at once, for the first time."""

import threading
from pathlib import Path

from holdfast.stores.sqlite.connection import DatabaseFile

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
