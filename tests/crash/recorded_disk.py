"""A disk in memory that records every operation, so that power can be cut after any of them.

Synced data is durable. Data written since the last sync may be there, in part, or not.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Literal, NamedTuple

import apsw

Loss = Literal["nothing", "prefix", "torn"]
"""What survives of the writes after the last sync of a file: nothing, a prefix of them, or any of
them, each in any of its sectors."""

SECTOR = 512
POWERSAFE_OVERWRITE = 0x1000
Images = dict[str, bytes]


class Operation(NamedTuple):
    """One operation on the disk, or a note between two of them."""

    kind: Literal["write", "truncate", "sync", "delete", "note"]
    file: str = ""
    offset: int = 0
    data: bytes = b""
    note: Any = None


class Disk(apsw.VFS):
    """Files in memory, and a log of all operations on them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[Operation] = []
        self.files: dict[str, bytearray] = {}
        self.before: Callable[[Operation], None] = lambda _: None
        super().__init__(name, "")

    def note(self, note: Any) -> None:
        """Add a note to the log."""
        self.log.append(Operation("note", note=note))

    def did(self, operation: Operation) -> None:
        """Record an operation, unless it is refused."""
        self.before(operation)
        self.log.append(operation)

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802 - SQLite's name
        """Open a file; one without a name is temporary."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        return File(self, path)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Delete a file."""
        self.did(Operation("delete", filename))
        self.files.pop(filename, None)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Whether a file exists and is not empty."""
        return bool(self.files.get(pathname))

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        """Return the name unchanged."""
        return name

    def power_losses(self, loss: Loss, *, every: int = 1) -> Iterator[tuple[int, Images]]:
        """Yield the possible content of the disk after a power loss, with the number of operations.

        Every `every`-th operation is tried. If unsynced writes are lost completely, only operations
        that change what is durable are tried.
        """
        durable: dict[str, bytearray] = {}
        pending: dict[str, list[Operation]] = {}
        for count, operation in enumerate(self.log, 1):
            _happen(operation, durable, pending)
            is_due = operation.kind not in ("write", "truncate") if loss == "nothing" else True
            if is_due and count % every == 0:
                yield count, _left(durable, pending, loss, Random(count))


class File:
    """One open file of the disk."""

    def __init__(self, disk: Disk, path: str | None) -> None:
        self._disk = disk
        self._path = path
        self._bytes = bytearray() if path is None else disk.files.setdefault(path, bytearray())

    def _do(self, operation: Operation) -> None:
        if self._path is not None:
            self._disk.did(operation)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self._bytes[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        operation = Operation("write", self._path or "", offset, bytes(data))
        self._do(operation)
        _apply(self._bytes, operation)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        operation = Operation("truncate", self._path or "", size)
        self._do(operation)
        _apply(self._bytes, operation)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._do(Operation("sync", self._path or ""))

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._bytes)

    def xLock(self, level: int) -> None:  # noqa: N802
        """Do nothing: the only connection has every lock."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Do nothing: no other connection waits."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """Like a modern file system: a torn write damages only its own range."""
        return POWERSAFE_OVERWRITE

    def xClose(self) -> None:  # noqa: N802
        """Do nothing: the disk keeps the content."""


def _happen(
    operation: Operation, durable: dict[str, bytearray], pending: dict[str, list[Operation]]
) -> None:
    match operation.kind:
        case "write" | "truncate":
            pending.setdefault(operation.file, []).append(operation)
        case "sync":
            image = durable.setdefault(operation.file, bytearray())
            for done in pending.pop(operation.file, []):
                _apply(image, done)
        case "delete":
            durable.pop(operation.file, None)
            pending.pop(operation.file, None)
        case "note":
            pass


def _left(
    durable: dict[str, bytearray], pending: dict[str, list[Operation]], loss: Loss, random: Random
) -> Images:
    images = {file: bytes(image) for file, image in durable.items()}
    for file, operations in pending.items():
        image = bytearray(images.get(file, b""))
        for survivor in _survivors(operations, loss, random):
            _apply(image, survivor)
        images[file] = bytes(image)
    return images


def _apply(image: bytearray, operation: Operation) -> None:
    offset, data = operation.offset, operation.data
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    if operation.kind == "truncate":
        del image[offset:]
    else:
        image[offset : offset + len(data)] = data


def _survivors(operations: list[Operation], loss: Loss, random: Random) -> Iterator[Operation]:
    match loss:
        case "nothing":
            return
        case "prefix":
            yield from operations[: random.randint(0, len(operations))]
        case "torn":
            share = random.random()
            for operation in operations:
                if random.random() < share:
                    yield from _sectors(operation, random)


def _sectors(operation: Operation, random: Random) -> Iterator[Operation]:
    """Yield some of the sectors of a write; a truncation happens or not."""
    if operation.kind == "truncate":
        yield operation
        return
    for start in range(0, len(operation.data), SECTOR):
        if random.random() < 0.7:
            part = operation.data[start : start + SECTOR]
            yield Operation("write", operation.file, operation.offset + start, part)
