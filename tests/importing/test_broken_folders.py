"""Folders of OpenClaw of which a part cannot be read: the rest is taken, and the part is named."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminals import Outcome, in_pipe, in_process
from tests.importing.picture import picture

GOLDEN = Path(__file__).parent / "golden" / "openclaw"


class Folder:
    """A copy of a state folder, and what an import makes of it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path / "openclaw"
        shutil.copytree(GOLDEN, self.path)
        self.sessions = self.path / "agents/main/sessions"
        self.index = self.sessions / "sessions.json"
        self.store = f"sqlite:///{path / 'store.db'}"
        self._capsys = capsys

    def take(self, path: Path | None = None) -> Outcome:
        """Import it."""
        return in_process(
            self._capsys, "sessions", "import", str(path or self.path), "--store", self.store,
            "--json",
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Import it and return the report."""
        report: dict[str, Any] = json.loads(self.take().out)
        return report

    def picture(self) -> str:
        """Return what the store has."""
        return asyncio.run(picture(self.store))


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    """A state folder that may be broken."""
    return Folder(tmp_path, capsys)


@pytest.mark.parametrize(
    "broken", [b'{"agent:main:main": {"sessionId"', b"", b"[1]", b"\xff\xfe\x00"], ids=repr
)
def test_transcripts_of_an_invalid_index_are_recovered_and_the_index_is_named(
    broken: bytes, folder: Folder
) -> None:
    folder.index.write_bytes(broken)
    outcome = folder.take()
    report = json.loads(outcome.out)
    assert outcome.code == 1
    problem, used = outcome.err.splitlines()
    assert str(folder.index) in problem
    assert used == f"holdfast: used store {folder.store}"
    assert [str(folder.index) in problem for problem in report["unread"]] == [True]
    assert report["counts"].keys() == {"added"}
    keys = {one["key"] for one in report["sessions"]}
    assert keys == {
        f"agent:main:recovered:{path.name.removesuffix('.jsonl')}"
        for path in folder.sessions.glob("*.jsonl")
        if ".trajectory" not in path.name
    }
    assert folder.report()["counts"] == {"unchanged": sum(report["counts"].values())}


def test_sessions_get_their_keys_when_the_index_is_repaired(folder: Folder) -> None:
    whole = folder.index.read_bytes()
    folder.index.write_bytes(whole[:-20])
    folder.report()
    folder.index.write_bytes(whole)
    report = folder.report()
    # The one transcript that no index names was recovered under its own key before.
    assert (report["unread"], report["counts"]) == ([], {"added": 7, "set_aside": 1})
    shown = folder.picture().splitlines()
    named = [line for line in golden_lines() if "recovered" not in line]
    assert [line for line in named if line not in shown] == []


def golden_lines() -> list[str]:
    """Return what the folder holds when nothing is broken."""
    return (GOLDEN.parent / "openclaw.txt").read_text().splitlines()


def test_an_invalid_entry_of_the_index_is_counted(folder: Folder) -> None:
    index = json.loads(folder.index.read_bytes())
    folder.index.write_text(json.dumps({**index, "agent:main:odd": 7}))
    outcome = folder.take()
    assert (outcome.code, json.loads(outcome.out)["counts"]["added"]) == (1, 8)
    assert outcome.err == (
        f"holdfast: 1 entries of {folder.index} could not be read\n"
        f"holdfast: used store {folder.store}\n"
    )


def test_an_unreadable_agent_does_not_block_the_others(folder: Folder) -> None:
    broken = folder.path / "agents/broken/agent/openclaw-agent.sqlite"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"SQLite format 3\0 and then nothing")
    shutil.copytree(folder.sessions, folder.path / "agents/broken/sessions")
    outcome = folder.take()
    assert (outcome.code, json.loads(outcome.out)["counts"]) == (1, {"added": 8})
    assert str(broken) in outcome.err
    assert "agent:broken:" not in folder.picture()


def test_an_unreadable_transcript_is_named(folder: Folder) -> None:
    other = folder.path / "agents/other/sessions"
    other.mkdir(parents=True)
    # A file that opens, and gives nothing but an error.
    (other / "unreadable.jsonl").symlink_to("/proc/self/mem")
    outcome = folder.take()
    assert (outcome.code, json.loads(outcome.out)["counts"]) == (1, {"added": 8})
    problem, _ = outcome.err.splitlines()
    assert str(folder.path) in problem


def test_an_invalid_index_alone_prints_one_line_and_imports_nothing(
    folder: Folder, tmp_path: Path
) -> None:
    alone = tmp_path / "alone/sessions.json"
    alone.parent.mkdir()
    alone.write_text("{")
    for path in (alone, alone.parent):
        outcome = folder.take(path)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert str(alone) in outcome.err


def test_an_invalid_index_is_an_error_beside_the_table(folder: Folder) -> None:
    folder.index.write_text("{")
    shown = in_pipe("sessions", "import", str(folder.path), "--store", folder.store)
    assert shown.code == 1
    assert "added: imported" in shown.out
    assert f"holdfast: {folder.index} is not JSON" in shown.err
