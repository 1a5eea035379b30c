"""The settings that are really in force, and a file that is not made twice."""

import sqlite3
from pathlib import Path

import pytest

from holdfast.stores.sqlite_file import DatabaseFile, Link


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"pragma {name}").fetchone()[0]


def test_every_connection_has_the_settings_that_durability_needs(tmp_path: Path) -> None:
    file = DatabaseFile(str(tmp_path / "a.db"))
    for _ in range(2):
        connection = file.connect()
        assert pragma(connection, "journal_mode") == "wal"
        assert pragma(connection, "synchronous") == 2, "FULL"
        assert pragma(connection, "foreign_keys") == 1
        assert pragma(connection, "busy_timeout") == 5000
        connection.close()


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "q?x=1.db", "h#1.db", "é.db"])
def test_any_name_of_a_file_is_that_file(tmp_path: Path, name: str) -> None:
    DatabaseFile(str(tmp_path / name)).connect().close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_that_was_taken_away_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = DatabaseFile(str(path))
    file.connect().close()
    path.unlink()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        file.connect()
    assert not path.exists()


def test_a_link_notices_that_another_file_stands_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    file = DatabaseFile(str(path))
    link = Link(file.connect, file.identity)
    link.connection()
    link.check()
    path.rename(tmp_path / "away.db")
    with pytest.raises(sqlite3.OperationalError, match="moved or removed"):
        link.check()
    path.touch()
    with pytest.raises(sqlite3.OperationalError, match="moved or removed"):
        link.check()
    link.cut()
    link.cut()


def test_a_reading_link_cannot_write(tmp_path: Path) -> None:
    file = DatabaseFile(str(tmp_path / "a.db"))
    link = Link(file.connect, file.identity, is_read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        link.connection().execute("create table t (x)")
    link.cut()
