"""A dry run of an import: it says what would be done, and leaves a store as it was."""

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest

from tests.cli.terminals import Outcome, in_process
from tests.migration.first_schema import create_file, fill_database

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
TABLES = "select tablename::text from pg_tables where schemaname = 'public' order by 1"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A file of messages."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT))
    return path


def dry_run(capsys: pytest.CaptureFixture[str], chat: Path, store: str) -> Outcome:
    """Run the import, dry."""
    return in_process(
        capsys, "sessions", "import", str(chat), "--store", store, "--dry-run", "--json"
    )


def tables_of(url: str) -> list[str]:
    """Return the tables of a PostgreSQL database."""

    async def check() -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            return [row[0] for row in await connection.fetch(TABLES)]
        finally:
            await connection.close()

    return asyncio.run(check())


def test_an_empty_database_stays_empty(
    bare_postgres_url: str, chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = dry_run(capsys, chat, bare_postgres_url)
    assert (told.code, json.loads(told.out)["counts"]) == (0, {"added": 1})
    assert tables_of(bare_postgres_url) == []


def test_an_empty_file_stays_empty(
    tmp_path: Path, chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "empty.db"
    store.touch()
    told = dry_run(capsys, chat, f"sqlite:///{store}")
    assert (told.code, json.loads(told.out)["counts"]) == (0, {"added": 1})
    assert store.read_bytes() == b""


def test_a_dry_run_does_not_migrate_a_database(
    bare_postgres_url: str, chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill_database(bare_postgres_url))
    before = tables_of(bare_postgres_url)
    told = dry_run(capsys, chat, bare_postgres_url)
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert "written by an earlier version" in told.err
    assert tables_of(bare_postgres_url) == before


def test_a_dry_run_does_not_migrate_a_file(
    tmp_path: Path, chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "old.db"
    create_file(store)
    before = store.read_bytes()
    told = dry_run(capsys, chat, f"sqlite:///{store}")
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert "written by an earlier version" in told.err
    assert store.read_bytes() == before


def test_a_dry_run_does_not_change_a_file_in_use(
    tmp_path: Path, chat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.db"
    in_process(capsys, "sessions", "import", str(chat), "--store", f"sqlite:///{store}")
    before = store.read_bytes(), sorted(path.name for path in tmp_path.iterdir())
    told = dry_run(capsys, chat, f"sqlite:///{store}")
    assert (told.code, json.loads(told.out)["counts"]) == (0, {"unchanged": 1})
    assert (store.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == before
