"""Every command there is, in a terminal and in a pipe: its help, and what it says to nonsense."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.app import app
from tests.cli.terminals import Terminal, in_own_process, in_process, in_terminal, lines_of


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(child, (*path, name))


COMMANDS = list(_commands(typer.main.get_command(app)))
EVERY = pytest.mark.parametrize("command", COMMANDS, ids=lambda path: " ".join(path) or "holdfast")


# One process for all of them: a terminal is what is tried here, not the start of Python.
HELP = """
import json, sys
from holdfast.cli.app import execute
for path in json.loads(sys.argv[1]):
    print("begin", *path)
    print("ended", execute([*path, "--help"]))
"""


def test_every_command_has_help_that_fits_a_terminal() -> None:
    program = [sys.executable, "-c", HELP]
    with Terminal(json.dumps(COMMANDS), columns=80, program=program) as terminal:
        outcome = terminal.wait()
    assert outcome.code == 0
    assert max(len(line) for line in lines_of(outcome)) <= 80
    assert lines_of(outcome).count("ended 0") == len(COMMANDS)


@EVERY
def test_help_is_printed_with_exit_code_0(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Usage" in outcome.out


@EVERY
def test_an_unknown_option_prints_one_line_and_exits_with_2(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = in_process(capsys, *command, "--no-such-option")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_the_version_is_printed_in_a_terminal_and_in_a_pipe() -> None:
    assert in_terminal("--version").out == in_own_process("--version").out
    assert in_own_process("--version").out.startswith("holdfast ")


@pytest.mark.parametrize("module", ["holdfast", "holdfast.cli"])
def test_the_commands_run_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, check=True, capture_output=True)
    assert done.stdout.startswith(b"holdfast ")


def test_shell_completion_knows_the_commands() -> None:
    # Else the shell is guessed from the processes above, of which none need be one.
    script = in_own_process(
        "--show-completion", "bash", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )
    assert script.code == 0
    assert "holdfast" in script.out or "complete" in script.out


def test_a_closed_pipe_prints_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "config", "show"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err


def test_an_unknown_fault_prints_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = in_process(capsys, "sim", "--fault", "nosuch")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no fault 'nosuch'; there are" in outcome.err
    assert ", cut, " in outcome.err
    assert "R02" in outcome.err


def test_an_empty_tenant_is_rejected_as_a_tenant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    outcome = in_process(capsys, "keys", "create", "--tenant", "", "--store", store)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("holdfast: a tenant has 1 to ")
