"""The file of an export that can be continued: `.NAME.part` until it is complete.

It has nothing but whole lines of sessions once it was cut, so the sessions themselves say where an
interrupted export continues: after the last one but one, as the last one may be incomplete.
"""

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.cli.output.terminal import CommandFailed
from holdfast.transfer.export_formats import export_header

BLOCK_BYTES = 1024 * 1024
HEAD_BYTES = 512
"""The longest beginning of a session's line that `_SESSION` matches."""
_SESSION = re.compile(rb'\n\{"id":"([0-9A-Za-z._~-]{1,256})","object":"session",')
"""The beginning of a session's line. Line ends inside a value are escaped."""


class ExportFile:
    """An open file of an export."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.after: str | None = None
        """The session after which the export continues."""

    def begin(self, *, generations: bool) -> None:
        """Empty the file and write its header."""
        self._file.truncate(0)
        self._file.seek(0)
        self.write(f"{export_header(generations=generations)}\n".encode())

    def resume(self, *, generations: bool) -> None:
        """Cut the file after its last complete session."""
        self._file.seek(0)
        head = self._file.readline(BLOCK_BYTES)
        found = _last_sessions(self._file, 2)
        if len(found) < 2:
            self.begin(generations=generations)
            return
        if json.loads(head).get("generations") is not generations:
            without = "without" if generations else "with"
            raise CommandFailed(f"the interrupted export was started {without} --generations")
        self._cut(found[0][0])
        self.after = found[1][1]

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def drop(self, session_id: str) -> None:
        """Remove the lines of the last session, which was erased."""
        self._file.flush()
        last = _last_sessions(self._file, 1)
        self._file.seek(0, os.SEEK_END)
        if last and last[0][1] == session_id:
            self._cut(last[0][0])

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def has_sessions(self) -> bool:
        """Whether there is anything to continue after."""
        self._file.flush()
        return bool(_last_sessions(self._file, 1))


@contextmanager
def open_export(output: Path, *, resume: bool, generations: bool) -> Iterator[ExportFile]:
    """Open the file of an export; it replaces `output` once the block is through.

    If the block fails, what was written remains to be continued.
    """
    part = output.with_name(f".{output.name}.part")
    try:
        with _locked(part) as file:
            export = ExportFile(file)
            is_complete = False
            try:
                (export.resume if resume else export.begin)(generations=generations)
                yield export
                file.flush()
                os.fsync(file.fileno())
                part.replace(output)
                is_complete = True
            finally:
                if not is_complete and not export.has_sessions:
                    part.unlink(missing_ok=True)
    except OSError as exc:
        raise CommandFailed(f"{output} cannot be written: {exc.strerror}") from exc


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Open the file for this process alone, readable by its owner only."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(part, flags, 0o600), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise CommandFailed(f"another export writes to {part}") from exc
        yield file


def _last_sessions(file: BinaryIO, count: int) -> list[tuple[int, str]]:
    """Return where the last sessions of a file begin, and their ids, the last one first."""
    end, later = file.seek(0, os.SEEK_END), b""
    found: list[tuple[int, str]] = []
    while end > 0 and len(found) < count:
        start = max(end - BLOCK_BYTES, 0)
        file.seek(start)
        block = file.read(end - start)
        matches = [*_SESSION.finditer(block + later[:HEAD_BYTES])]
        found += [
            (start + match.start() + 1, match[1].decode())
            for match in reversed(matches)
            if match.start() < len(block)
        ]
        end, later = start, block
    return found[:count]
