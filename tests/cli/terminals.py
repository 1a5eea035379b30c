"""Run the command line in a real terminal and in a pipe."""

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from typing import NamedTuple, TextIO

import pytest

from holdfast.cli.app import execute

WAIT_SECONDS = 60.0
COMMAND = [sys.executable, "-m", "holdfast.cli"]


class Outcome(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


def _environment(env: dict[str, str] | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "OPENAI_"))}
    return {**kept, "TERM": "xterm-256color", **(env or {})}


def in_own_process(*arguments: str, said: str = "", env: dict[str, str] | None = None) -> Outcome:
    """Run a command without a terminal, in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=said,
        capture_output=True,
        text=True,
        env=_environment(env),
        timeout=WAIT_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def in_pipe(*arguments: str, said: str = "", env: dict[str, str] | None = None) -> Outcome:
    """Run a command without a terminal, in this process: a start takes most of a command's time."""
    environment = dict(os.environ)
    streams = sys.stdin, sys.stdout, sys.stderr
    with _written_pipe(said) as stdin, _text_file() as stdout, _text_file() as stderr:
        try:
            os.environ.clear()
            os.environ.update(_environment(env))
            sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr
            code = execute(arguments)
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            os.environ.clear()
            os.environ.update(environment)
        return Outcome(code, _content(stdout), _content(stderr))


def _written_pipe(text: str) -> TextIO:
    """Return the end of a pipe in which a text waits to be read."""
    content = text.encode()
    assert len(content) <= select.PIPE_BUF
    read_end, write_end = os.pipe()
    os.write(write_end, content)
    os.close(write_end)
    return open(read_end, encoding="utf-8")


def _text_file() -> TextIO:
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")


def _content(file: TextIO) -> str:
    file.flush()
    file.seek(0)
    return file.read()


def _take_terminal() -> None:
    """Make this the controlling terminal, so that Ctrl-C works even in a background run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """Run a command in this process, if a process of its own would show nothing more."""
    capsys.readouterr()
    code = execute(arguments)
    printed = capsys.readouterr()
    return Outcome(code, printed.out, printed.err)


class Terminal:
    """A command in its own terminal; `expect` reads its output."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 100,
        env: dict[str, str] | None = None,
        program: Sequence[str] = COMMAND,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            [*program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=_environment(env),
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - two calls to the system
        )
        os.close(slave)
        self.seen = ""
        self._bytes = b""
        self._position = 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Read until a text was printed, after the previously expected one."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            found = self.seen.find(text, self._position)
            if found >= 0:
                self._position = found + len(text)
                return
            left = until - time.monotonic()
            assert left > 0, f"{text!r} never came; there was:\n{self.seen}"
            assert self._read(left), f"{text!r} never came; it ended with:\n{self.seen}"

    def wait(self) -> Outcome:
        """Read to the end and return the outcome."""
        while self._read(WAIT_SECONDS):
            pass
        return Outcome(self._process.wait(WAIT_SECONDS), self.seen, "")

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            return False
        self._bytes += chunk
        self.seen = self._bytes.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(chunk)


def in_terminal(
    *arguments: str, columns: int = 100, typed: str = "", env: dict[str, str] | None = None
) -> Outcome:
    """Run a command in a terminal to its end."""
    with Terminal(*arguments, columns=columns, env=env) as terminal:
        if typed:
            terminal.type(typed)
        return terminal.wait()


def lines_of(outcome: Outcome) -> list[str]:
    """Return the lines a terminal shows, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", outcome.out)
    return [line for line in plain.split("\n") if line.strip()]
