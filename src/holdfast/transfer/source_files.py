"""Files of other programs, read within bounds: a source may be a device, or have no end."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.transfer.imported_conversation import UnreadableSource

MAX_LINE_BYTES = 256 * 1024 * 1024
MAX_FILE_BYTES = 1024 * 1024 * 1024
"""The limit of a file that is read as a whole."""


def check_source(path: Path) -> None:
    """Raise if a path is neither a file nor a folder: a device or a pipe may never end."""
    if not path.exists():
        raise UnreadableSource(f"{path} does not exist")
    if not (path.is_file() or path.is_dir()):
        raise UnreadableSource(f"{path} is neither a file nor a folder; copy it into a file first")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; raise at one that is too long."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise UnreadableSource(f"{path} has more than {MAX_LINE_BYTES} bytes in a line")
            yield line


def whole_of(path: Path) -> bytes:
    """Return the content of a file; raise if it is too long."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableSource(f"{path} has more than {MAX_FILE_BYTES} bytes")
    return content
