"""Sources that never end, and ids that nobody could name afterwards."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.transfer import source_files
from tests.acceptance.gateway_process import running_gateway
from tests.cli.terminals import Outcome, in_process

MESSAGE = '{"role": "user", "content": "hi"}\n'
SESSION = {"object": "session", "key": "k", "generation": 1, "status": "idle"}


class Taking:
    """Imports into a store of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = f"sqlite:///{folder / 'store.db'}"
        self._capsys = capsys

    def take(self, path: Path, *more: str) -> Outcome:
        arguments = ("sessions", "import", str(path), "--store", self.store, "--json", *more)
        return in_process(self._capsys, *arguments)


@pytest.fixture
def taking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Taking:
    return Taking(tmp_path, capsys)


@pytest.mark.parametrize("form", ["auto", "holdfast", "openclaw", "agents", "chat"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_source_that_is_no_file_is_refused_unread(
    taking: Taking, tmp_path: Path, form: str, kind: str
) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)  # to open it would wait for a writer for ever
    outcome = taking.take(path, "--from", form)
    assert outcome.code == 1
    assert f"{path} is neither a file nor a folder" in outcome.err


def test_an_index_that_is_no_file_is_reported(taking: Taking, tmp_path: Path) -> None:
    folder = tmp_path / "openclaw/agents/main/sessions"
    folder.mkdir(parents=True)
    (folder / "s1.jsonl").write_text('{"type":"session","id":"s1"}\n')
    os.mkfifo(folder / "sessions.json")
    outcome = taking.take(tmp_path / "openclaw")
    assert outcome.code == 1
    assert "sessions.json is not a file" in outcome.err


@pytest.mark.parametrize("form", ["holdfast", "chat"])
def test_a_source_that_does_not_end_is_read_up_to_a_limit(
    taking: Taking, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(source_files, "MAX_FILE_BYTES", 1000)
    path = tmp_path / "long.jsonl"
    path.write_text(" " * 2000 + MESSAGE)
    outcome = taking.take(path, "--from", form)
    assert outcome.code == 1
    assert f"{path} has more than 1000 bytes" in outcome.err


@pytest.mark.parametrize(
    "name", ["ses_a/b", "ses_../../keys", "ses_ä", "ses_a?b", "conv_abcdefgh", "plain", "ses_a\n"]
)
def test_a_session_whose_id_no_url_reaches_gets_another(
    taking: Taking, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "export.jsonl"
    item = {"type": "message", "role": "user", "content": "hi"}
    entry: dict[str, Any] = {
        "object": "session.item", "session_id": name, "turn_number": 1, "sequence": 1, "item": item,
    }  # fmt: skip
    path.write_text(json.dumps({**SESSION, "id": name}) + "\n" + json.dumps(entry) + "\n")
    first = json.loads(taking.take(path).out)["sessions"][0]
    assert first["status"] == "added"
    assert first["problems"] == [f"its id {name!r} cannot be in a URL: it got another"]
    again = json.loads(taking.take(path).out)["sessions"][0]
    assert (again["status"], again["session_id"]) == ("unchanged", first["session_id"])
    with running_gateway(taking.store) as gateway:
        found = httpx.get(f"{gateway.url}/v1/sessions/{first['session_id']}")
        assert found.json()["item_count"] == 1
