"""Stores that cannot be used, and secrets in their names: one line that says which."""

import asyncio
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from holdfast.cli.output.masking import mask_url
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import COMMAND, Terminal, in_own_process, in_process
from tests.migration.first_schema import create_file
from tests.postgres import PostgresServer

IMPORT = ("sessions", "import", str(Path(__file__).parent.parent / "importing/golden/openclaw"))
COMMANDS = [
    ("serve", "--port", "0"),
    ("keys", "list"),
    ("keys", "create"),
    IMPORT,
    (*IMPORT, "--dry-run"),
]


GOLDEN = Path(__file__).parent.parent / "migration/golden/log_0.1.0.sqlite"


def _file(path: Path, kind: str) -> Path:
    if kind == "older":
        create_file(path)
        connection = sqlite3.connect(path)
        connection.execute("pragma journal_mode = wal")
        connection.close()
    elif kind == "folder":
        path.mkdir()
    elif kind == "foreign":
        connection = sqlite3.connect(path)
        connection.executescript(
            "create table notes (id integer primary key); insert into notes values (1)"
        )
        connection.close()
    elif kind == "text":
        path.write_text("this was never a database, and is long enough to be looked at")
    else:
        connection = sqlite3.connect(path)
        connection.execute("create table schema_versions (version int, name text, at real)")
        connection.execute("insert into schema_versions values (9000, 'from the future', 0.0)")
        connection.commit()
        connection.close()
    return path


@pytest.mark.parametrize("kind", ["folder", "text"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_file_that_is_not_a_store_is_named(
    command: tuple[str, ...], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path / "store.db", kind)
    outcome = in_process(capsys, *command, "--store", f"sqlite:///{path}")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert str(path) in outcome.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_store_of_the_first_schema_is_refused_and_the_way_out_named(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path / "store.db", "older")
    before = path.read_bytes()
    outcome = in_process(capsys, *command, "--store", f"sqlite:///{path}")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "export its sessions with that version" in outcome.err
    assert path.read_bytes() == before


def _files(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, but not the index of a WAL, which readers write too."""
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")
    }


def _kill_a_writer(path: Path) -> None:
    """Let a process write to a database and die, so that its WAL stays behind."""
    text = (
        f"import os, sqlite3; db = sqlite3.connect({str(path)!r}, isolation_level=None); "
        "db.execute('pragma journal_mode = wal'); "
        "db.execute('create table noted (a)'); db.execute('drop table noted'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0


def _set_journal(path: Path, mode: str) -> None:
    if mode == "killed":
        _kill_a_writer(path)
        return
    connection = sqlite3.connect(path)
    assert connection.execute(f"pragma journal_mode = {mode}").fetchone() == (mode,)
    connection.close()


@pytest.mark.parametrize("journal", ["delete", "wal", "killed"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_database_of_another_application_is_refused_and_not_changed(
    command: tuple[str, ...], journal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path / "notes.db", "foreign")
    _set_journal(path, journal)
    before = _files(tmp_path)
    outcome = in_process(capsys, *command, "--store", f"sqlite:///{path}")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert f"{path}: the file is a database of another application" in outcome.err
    assert _files(tmp_path) == before


def test_the_doctor_says_that_a_file_is_not_a_store_and_fixes_nothing_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path / "notes.db", "foreign")
    path.chmod(0o644)
    before = _files(tmp_path)
    for options in ((), ("--fix",)):
        outcome = in_process(capsys, "doctor", *options, "--json", "--store", f"sqlite:///{path}")
        assert outcome.code == 1
        [finding] = json.loads(outcome.out)
        assert (finding["code"], finding["mended"]) == ("store_foreign", False)
        assert f"{path}: the file is a database of another application" in finding["detail"]
    assert (_files(tmp_path), path.stat().st_mode & 0o777) == (before, 0o644)


@pytest.mark.parametrize("columns", ["id int, at text", "version text"])
def test_a_table_named_like_ours_does_not_make_a_file_a_store(
    columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute(f"create table schema_versions ({columns})")
    connection.close()
    before = _files(tmp_path)
    for command, code in ((("keys", "create"), 1), (("doctor",), 1), (("backup", "x.db"), 1)):
        outcome = in_process(capsys, *command, "--store", f"sqlite:///{path}")
        assert outcome.code == code
        assert "a database of another application" in outcome.out + outcome.err
    assert _files(tmp_path) == before


@pytest.mark.parametrize("kind", ["no bytes", "no tables", "no tables in WAL mode"])
def test_an_empty_file_or_database_becomes_a_store(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.db"
    path.touch()
    if kind != "no bytes":
        connection = sqlite3.connect(path)
        connection.executescript("create table a (b); drop table a;")
        connection.close()
        _set_journal(path, "wal" if kind.endswith("mode") else "delete")
    url = f"sqlite:///{path}"
    assert "has no tables yet" in in_process(capsys, "doctor", "--store", url).out
    assert in_process(capsys, "keys", "create", "--store", url).code == 0
    assert in_process(capsys, "keys", "list", "--store", url).out.count("key_") == 1


async def _execute(url: str, *statements: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
        rows = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
    finally:
        await connection.close()
    return sorted(row[0] for row in rows)


def test_a_postgresql_database_is_shared_with_other_tables(
    bare_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_execute(bare_postgres_url, "create table notes (id int)"))
    assert "has no tables yet" in in_process(capsys, "doctor", "--store", bare_postgres_url).out
    assert in_process(capsys, "keys", "create", "--store", bare_postgres_url).code == 0
    tables = asyncio.run(_execute(bare_postgres_url))
    assert {"notes", "sessions", "schema_versions"} <= set(tables)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("sessions", "token text"), ("schema_versions", "id int"), ("schema_versions", "version int")],
)
def test_postgresql_tables_of_others_with_our_names_are_refused_and_not_changed(
    name: str, columns: str, bare_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_execute(bare_postgres_url, f"create table {name} ({columns})"))
    for command in COMMANDS:
        outcome = in_process(capsys, *command, "--store", bare_postgres_url)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert f"names of Holdfast's ({name})" in outcome.err
    looked = in_process(capsys, "doctor", "--json", "--store", bare_postgres_url)
    assert [found["code"] for found in json.loads(looked.out)] == ["store_foreign"]
    copied = in_process(capsys, "backup", "copy.dump", "--store", bare_postgres_url)
    assert (copied.code, "the database has no store" in copied.err) == (1, True)
    assert asyncio.run(_execute(bare_postgres_url)) == [name]


@pytest.mark.parametrize("journal", ["delete", "wal", "killed"])
def test_commands_do_not_change_a_store_of_the_first_schema(
    journal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    path = folder / "store.db"
    create_file(path)
    _set_journal(path, journal)
    before = _files(folder)
    url = f"sqlite:///{path}"
    for command in (
        *COMMANDS,
        ("doctor",),
        ("doctor", "--deep"),
        ("backup", str(tmp_path / "copy.db")),
    ):
        in_process(capsys, *command, "--store", url)
        assert _files(folder) == before, command


@pytest.mark.parametrize("journal", ["delete", "wal", "killed"])
def test_looking_at_a_store_does_not_change_it(
    journal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    path = folder / "store.db"
    url = f"sqlite:///{path}"
    assert in_process(capsys, "keys", "create", "--store", url).code == 0
    _set_journal(path, journal)
    before = _files(folder)
    for command in (
        ("doctor", "--deep", "--store", url),
        ("backup", str(tmp_path / "copy.db"), "--store", url),
    ):
        assert in_process(capsys, *command).code == (command[0] == "doctor" and journal == "delete")
        assert _files(folder) == before, command


def test_commands_that_look_do_not_migrate_a_store_that_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    path = Path(shutil.copy(GOLDEN, folder / "store.db"))
    path.chmod(0o600)
    before = _files(folder)
    for command in (
        ("doctor", "--deep"),
        ("backup", str(tmp_path / "copy.db")),
        ("keys", "list"),
    ):
        in_process(capsys, *command, "--store", f"sqlite:///{path}")
        assert _files(folder) == before, command


@pytest.mark.parametrize("kind", ["folder", "text", "newer", "older", "foreign"])
def test_the_doctor_and_the_backup_name_it_too(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path / "store.db", kind)
    url = f"sqlite:///{path}"
    looked = in_process(capsys, "doctor", "--store", url)
    assert looked.code == 1
    assert str(path) in looked.out + looked.err
    copied = in_process(capsys, "backup", str(tmp_path / "copy.db"), "--store", url)
    if kind == "newer":
        return
    assert (copied.code, copied.out, copied.err.count("\n")) == (1, "", 1)
    if kind == "older":
        assert "export its sessions with that version" in looked.out
        assert "export its sessions with that version" in copied.err
    else:
        assert str(path) in copied.err


def test_listing_keys_does_not_create_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "typo" / "store.db"
    for command in (("list",), ("revoke", "key_x")):
        outcome = in_process(capsys, "keys", *command, "--store", f"sqlite:///{path}")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == f"holdfast: there is no store at {path}\n"
    assert list(tmp_path.iterdir()) == []


SECRET = "sekret"
SECRET_URLS = [
    f"mysql://ada:{SECRET}@host/db",
    f"postgresql://ada:{SECRET}@127.0.0.1:1/db",
    f"postgresql://ada@127.0.0.1:1/db?password={SECRET}",
    f"postgresql://ada:{SECRET}@host:none/db",
]


@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize("command", [*COMMANDS, ("doctor",), ("backup", "copy.db")], ids=str)
def test_secrets_of_a_url_are_not_printed(
    command: tuple[str, ...], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command, "--store", url)
    assert (outcome.code in (1, 2), outcome.out, outcome.err.count("\n")) == (True, "", 1)
    assert SECRET not in outcome.err
    if url.startswith("mysql"):
        assert outcome.code == 2


@pytest.mark.parametrize("url", [SECRET_URLS[0], SECRET_URLS[3]])
def test_an_invalid_store_is_rejected_with_its_line_and_without_its_secret(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[store]\nurl = "{url}"\n')
    for command in (("config", "show"), ("serve", "--port", "0")):
        outcome = in_process(capsys, *command, "--config", str(config))
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert f"{config}:2: " in outcome.err
        assert SECRET not in outcome.err


@pytest.mark.parametrize("url", SECRET_URLS[1:3])
def test_the_configuration_is_shown_without_secrets_of_urls(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(
        f'[store]\nurl = "{url}"\n[[upstream]]\nurl = "https://x.example/v1?api-key={SECRET}"\n'
    )
    for options in ((), ("--json",)):
        shown = in_process(capsys, "config", "show", "--config", str(config), *options)
        assert (shown.code, SECRET in shown.out, "ada" in shown.out) == (0, False, True)
        assert "https://x.example/v1" in shown.out


def test_a_url_without_a_password_is_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "holdfast.toml"
    url = "postgresql://ada@host:5432/db?sslmode=require"
    config.write_text(f'[store]\nurl = "{url}"\n')
    shown = in_process(capsys, "config", "show", "--config", str(config), "--json")
    assert json.loads(shown.out)["store"]["url"] == url


def test_a_wrong_password_prints_one_line(
    postgres_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    host = postgres_server.url().rpartition("host=")[2]
    url = f"postgresql://nobody_here:{SECRET}@/postgres?host={host}"
    for command in (("doctor",), ("keys", "list"), ("backup", "copy.dump"), (*IMPORT, "--dry-run")):
        outcome = in_process(capsys, *command, "--store", url)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert "nobody_here" in outcome.err
        assert SECRET not in outcome.err


def test_a_locked_store_prints_one_line(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    assert in_own_process("keys", "create", "--store", url).code == 0
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin exclusive")
    outcome = in_own_process("keys", "create", "--store", url)
    other.close()
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        f"holdfast: {path}: the store cannot be used now: database is locked; end the other "
        "program that writes to it, or try again\n"
    )


def test_serve_names_the_store_that_it_cannot_use(postgres_url: str) -> None:
    newer = "insert into schema_versions (version, name, applied_at) values (99, 'newer', 0)"
    asyncio.run(_execute(postgres_url, newer))
    try:
        outcome = in_own_process("serve", "--store", postgres_url, "--port", "0")
    finally:  # the next test gets the same database
        asyncio.run(_execute(postgres_url, "delete from schema_versions where version = 99"))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "schema is at version 99" in outcome.err
    assert outcome.err.endswith(f" (store {mask_url(postgres_url)})\n")


def test_ctrl_c_ends_a_command_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with Terminal("sessions", "list", "--url", f"http://127.0.0.1:{port}") as terminal:
            line, _ = mute.accept()
            with line:
                line.recv(1)
                terminal.type("\x03")
                outcome = terminal.wait()
    assert outcome.code == 130
    assert "Traceback" not in outcome.out


def test_a_full_disk_prints_one_line(gateway: GatewayUnderTest) -> None:
    gateway.say("full", "hello")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "sessions", "items", "full"], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **gateway.env}, timeout=60, check=False,
        )  # fmt: skip
    used = f"gateway {gateway.url}"
    assert (done.returncode, done.stderr) == (1, f"holdfast: No space left on device ({used})\n")
