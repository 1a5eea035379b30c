"""`holdfast serve` in a terminal: what it prints can be tried as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import free_port, sqlite_url
from tests.cli.terminals import Terminal, in_process

ROOT = Path(__file__).parents[2]


def test_what_serve_prints_can_be_tried_as_it_is_printed(tmp_path: Path) -> None:
    with Terminal("serve", "--port", "0", "--store", sqlite_url(tmp_path), columns=200) as terminal:
        terminal.expect("holdfast listening on http://127.0.0.1:")
        terminal.expect("Ctrl-C stops it")
        said = terminal.seen
        curl, chat, python = re.findall(
            r"^  (curl.*?|holdfast.*?|python.*?)\n\n", said, re.M | re.S
        )
        assert "You said: 'I am Ada'" in _run(curl)
        chat = chat.replace("holdfast", f"{sys.executable} -m holdfast.cli", 1)
        assert "the first was 'I am Ada'" in _run(f"echo hello again | {chat}")
        script = python.replace("python", sys.executable, 1)
        assert "I remember 2 earlier message(s); the first was 'I am Ada'" in _run(script)
        terminal.type("\x03")
        assert terminal.wait().code == 0


def _run(script: str) -> str:
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_serve_serves() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "serve"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].endswith("holdfast serve")


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "", "1.5", "9" * 30])
def test_a_port_that_cannot_be_is_told_what_may_stand_there(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, "serve", "--port", port, "--store", "memory:")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("holdfast: --port")
    assert " is a number from 0 to 65535, not " in outcome.err


def test_a_port_that_is_taken_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    store = sqlite_url(tmp_path)
    with Terminal("serve", "--port", port, "--store", store) as terminal:
        terminal.expect("listening on")
        outcome = in_process(capsys, "serve", "--port", port, "--store", store)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.endswith(f": 127.0.0.1:{port}\n")


def test_the_world_is_not_listened_to_without_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(
        capsys, "serve", "--host", "0.0.0.0", "--port", "0", "--store", sqlite_url(tmp_path)
    )
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "holdfast keys create" in outcome.err


def test_the_simulator_starts_and_stops_in_a_terminal() -> None:
    with Terminal("sim", "--port", "0") as terminal:
        terminal.expect("holdfast sim listening on http://127.0.0.1:")
        terminal.type("\x03")
        assert terminal.wait().code == 0
