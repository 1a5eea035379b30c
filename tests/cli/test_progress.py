"""Progress of long work: counted in a terminal, on standard error, and silent in a pipe."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import Outcome, in_pipe, in_terminal

SESSIONS = 30


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file of many conversations."""
    path = tmp_path / "many.jsonl"
    line = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    path.write_text(f"{line}\n" * SESSIONS)
    return path


def _is_erased(outcome: Outcome, title: str) -> bool:
    """Whether the line of progress was wiped away when the work was done."""
    return outcome.out.rfind(f"{title}: ") < outcome.out.rfind("\x1b[2K")


def test_import_shows_progress_in_a_terminal_and_prints_a_table(many: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    shown = in_terminal("sessions", "import", str(many), "--store", store, columns=120)
    assert shown.code == 0
    assert f"importing: {SESSIONS} many:{SESSIONS}" in shown.out
    assert _is_erased(shown, "importing")
    assert f"{SESSIONS} added" in shown.out
    quiet = in_pipe("sessions", "import", str(many), "--store", store)
    assert (quiet.code, quiet.err) == (0, f"holdfast: used store {store}\n")
    assert "importing" not in quiet.out


def test_export_shows_progress_in_a_terminal(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.say("progress", "hello")
    file = tmp_path / "export.jsonl"
    shown = in_terminal("sessions", "export", "--all", "--output", str(file), env=gateway.env)
    assert shown.code == 0
    assert "exporting: 1 " in shown.out
    assert _is_erased(shown, "exporting")
    quiet = in_pipe("sessions", "export", "progress", env=gateway.env)
    assert (quiet.code, quiet.err) == (0, f"holdfast: used gateway {gateway.url}\n")


@pytest.mark.parametrize("form", ["jsonl", "markdown", "openai"])
def test_an_export_to_a_terminal_is_escaped_and_shows_no_progress(
    gateway: GatewayUnderTest, form: str
) -> None:
    gateway.say("steering", "\x1b]0;gone\x07 hello")
    shown = in_terminal("sessions", "export", "steering", "--format", form, env=gateway.env)
    assert shown.code == 0
    assert "hello" in shown.out
    assert "exporting" not in shown.out
    assert "\x1b" not in shown.out


def test_backup_and_doctor_show_progress(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    shown = in_terminal("backup", str(tmp_path / "copy.db"), "--store", gateway.store)
    assert "copying: 1 of " in shown.out
    assert _is_erased(shown, "copying")
    looked = in_terminal("doctor", "--store", gateway.store)
    assert "checking: 1 sqlite" in looked.out
    assert _is_erased(looked, "checking")
    for command in (("backup", str(tmp_path / "other.db")), ("doctor",)):
        quiet = in_pipe(*command, "--store", gateway.store)
        assert (quiet.code, quiet.err) == (0, f"holdfast: used store {gateway.store}\n")
