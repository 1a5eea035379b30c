"""Run the shell and Python blocks of a page in order and compare their output.

A server that a page starts in the foreground runs until the end of the page, as in a second
terminal. Placeholders (ports, hosts, folders) are replaced by the values of the test.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_SECONDS = 120
SERVERS = ("holdfast serve", "holdfast sim")
HOME_FILE = re.compile(r'title="~/([^"]+)"')
"""The note of a block that shows a file, which the walk writes."""
NOT_RUN = 'title="Not run by a test"'
"""The note of a block that needs a machine, a service or a key that a test does not have."""


class Block(NamedTuple):
    """A block of a page; `note` is the text after the language."""

    language: str
    note: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [
        Block(language, note.strip(), text)
        for language, note, text in FENCE.findall(page.read_text())
    ]


def commands_of(text: str) -> list[str]:
    """Return the lines of a shell block, with continued lines joined and without comments."""
    joined = text.replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


class Walker:
    """Runs blocks in one folder, with one environment."""

    def __init__(
        self,
        folder: Path,
        env: dict[str, str],
        instead: dict[str, str],
        packages: frozenset[str] = frozenset(),
    ) -> None:
        self._folder = folder
        self._env = env
        self._instead = instead
        self._packages = packages
        """Packages that a page may install besides Holdfast; the environment already has them."""
        self._groups: list[subprocess.Popen[Any]] = []
        self._exports: dict[str, str] = {}

    def __enter__(self) -> "Walker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the servers of the page, and the background processes of its commands."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group.pid, signal.SIGKILL)
            group.wait(WAIT_SECONDS)
            if group.stdout is not None:
                group.stdout.close()
        self._groups.clear()

    def walk(self, page: Path, extras: set[str], targets: set[str]) -> int:
        """Run a page; return how many blocks were run."""
        blocks = blocks_of(page)
        count = 0
        for index, block in enumerate(blocks):
            if file := HOME_FILE.fullmatch(block.note):
                self._write(file[1], block.text)
                continue
            if block.language not in ("sh", "python", "js") or block.note == NOT_RUN:
                continue
            following = blocks[index + 1] if index + 1 < len(blocks) else Block("", "", "")
            if block.language == "python":
                printed = self._run(["python", "-W", "ignore", "-c", self._own(block.text)])
            elif block.language == "js":
                printed = self._run(["node", "--input-type=module", "-e", self._own(block.text)])
            else:
                printed = self._shell(block.text, extras, targets)
            if following.language == "text":
                assert printed == following.text, f"after block {index} of {page.name}"
            count += 1
        return count

    def _write(self, path: str, text: str) -> None:
        """Write a file that the page shows into the home directory of the test."""
        file = Path(self._env["HOME"]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self._own(text))

    def _own(self, text: str) -> str:
        for name, value in self._instead.items():
            text = text.replace(name, value)
        return text

    def _shell(self, text: str, extras: set[str], targets: set[str]) -> str:
        script: list[str] = []
        for command in commands_of(self._own(text)):
            if command.startswith("make "):
                assert command.split()[1] in targets, command
            elif command.startswith(("pip install", "npm install")):
                self._check_install(command, extras)
            elif command.startswith(("source ", "git clone ", "cd ", "python3 -m venv ")):
                pass  # the test has its checkout, its environment and its folder
            elif command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self._exports[name] = value
            elif command.startswith(SERVERS) and not command.rstrip().endswith("&"):
                self._serve(command)
            else:
                script.append(command)
        return self._run(["sh", "-e", "-c", "\n".join(script)]) if script else ""

    def _check_install(self, command: str, extras: set[str]) -> None:
        names = [name for name in shlex.split(command)[2:] if not name.startswith("-")]
        for name in set(names) - self._packages:
            named = re.fullmatch(r"(?:holdfast|\.)(?:\[([\w,]+)\])?", name)
            assert named, f"{command} installs something unknown"
            assert set((named[1] or "").split(",")) - {""} <= extras, command

    def _run(self, command: list[str]) -> str:
        printed, complaints = self._folder / "printed.log", self._folder / "complaints.log"
        with printed.open("w") as out, complaints.open("w") as err:
            # In a group of its own: background processes of a script end with the page.
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**self._env, **self._exports},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._groups.append(process)
        code = process.wait(WAIT_SECONDS)
        assert code == 0, f"{command}\n{printed.read_text()}\n{complaints.read_text()}"
        return printed.read_text()

    def _serve(self, command: str) -> None:
        self.stop()  # a reader stops the previous server, because both use the same port
        server = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self._folder,
            env={**self._env, **self._exports},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._groups.append(server)
        assert server.stdout is not None
        seen = ""
        for line in server.stdout:
            seen += line
            if " listening on " in line:
                return
        raise AssertionError(f"{command} did not start:\n{seen}")
