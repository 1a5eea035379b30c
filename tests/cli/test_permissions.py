"""Files with conversations are for their owner only, whatever the umask."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.acceptance.gateway_process import running_gateway
from tests.cli.terminals import in_pipe, in_process


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Use a umask that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@contextmanager
def _nobody() -> Iterator[tuple[int, int]]:
    """Become somebody whom modes bind, unlike root; yield the user before and the one meanwhile."""
    user = os.geteuid()
    other = user or 65534
    os.seteuid(other)
    try:
        yield user, other
    finally:
        os.seteuid(user)


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def test_store_backup_and_export_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store = f"sqlite:///{folder / 'holdfast.db'}"
    with running_gateway(store) as gateway:
        assert in_pipe("chat", "me", "--url", gateway.url, said="hello\n").code == 0
        export = tmp_path / "export.jsonl"
        exported = in_pipe(
            "sessions", "export", "--all", "--output", str(export), "--url", gateway.url
        )
        assert exported.code == 0
        assert in_pipe("backup", str(tmp_path / "copy.db"), "--store", store).code == 0
        files = [path for path in folder.iterdir() if path.is_file()]
        assert {path.name for path in files} == {
            "holdfast.db",
            "holdfast.db-wal",
            "holdfast.db-shm",
        }
        assert {path.name: mode(path) for path in files} == dict.fromkeys(
            (path.name for path in files), "0600"
        )
        assert mode(folder) == "0700"
        assert mode(export) == "0600"
        assert mode(tmp_path / "copy.db") == "0600"


def test_every_directory_that_is_made_for_a_store_is_private(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "new" / "a" / "holdfast.db"
    assert in_process(capsys, "keys", "create", "--store", f"sqlite:///{store}").code == 0
    assert [mode(path) for path in (store.parent, store.parent.parent)] == ["0700", "0700"]
    assert mode(store) == "0600"


def test_doctor_reports_and_fixes_an_older_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    store = f"sqlite:///{folder / 'holdfast.db'}"
    assert in_process(capsys, "keys", "create", "--store", store).code == 0
    folder.chmod(0o755)
    (folder / "holdfast.db").chmod(0o644)
    found = in_process(capsys, "doctor", "--store", store)
    assert found.out.count("warning: permissions_open: ") == 2
    assert f"{folder / 'holdfast.db'} has mode 0644" in found.out
    fixed = in_process(capsys, "doctor", "--store", store, "--fix")
    assert fixed.out.count("  fixed\n") == 2
    assert (mode(folder), mode(folder / "holdfast.db")) == ("0700", "0600")
    assert in_process(capsys, "doctor", "--store", store).out == "no problems found\n"


def test_a_directory_with_other_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "notes.txt").touch()
    store = f"sqlite:///{folder / 'holdfast.db'}"
    assert in_process(capsys, "keys", "create", "--store", store).code == 0
    assert in_process(capsys, "doctor", "--store", store).out == "no problems found\n"


@pytest.mark.parametrize("command", [("keys", "create"), ("keys", "list"), ("doctor",)])
def test_a_store_that_this_user_may_not_read_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    store = tmp_path / "data" / "holdfast.db"
    assert in_process(capsys, "keys", "create", "--store", f"sqlite:///{store}").code == 0
    store.chmod(0)
    with TemporaryDirectory() as folder:
        moved = Path(shutil.move(store, folder))
        Path(folder).chmod(0o755)  # within the reach of others
        with _nobody() as (user, other):
            outcome = in_process(capsys, *command, "--store", f"sqlite:///{moved}")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{moved} belongs to uid {user}, and uid {other} may not read it" in outcome.err


def test_a_folder_that_this_user_may_not_write_to_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with _nobody() as (user, other):
            outcome = in_process(capsys, "keys", "create", "--store", f"sqlite:///{folder}/a.db")
        Path(folder).chmod(0o755)
    assert (outcome.code, outcome.out) == (1, "")
    refusal = f"{folder} belongs to uid {user}, and uid {other} may not create a store in it: "
    assert refusal in outcome.err
