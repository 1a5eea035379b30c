"""Split a byte stream, which may be cut anywhere, into server-sent events.

Lines end in LF, CR or CRLF. Comments, `id` and `retry` are skipped; several `data` lines form one
event. Bytes after the last empty line are not an event.
"""

import msgspec

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 32 * 1024 * 1024
"""The limit for one event; the last event of a response contains all of it, images included."""


class EventTooLong(Exception):
    """An event exceeds the limit."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event; its type is `message` if the server names none."""

    type: str
    data: bytes


class SseSplitter:
    """Returns the events that each chunk completes."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending: list[bytes] = []
        self._size = 0
        self._ends_in_line_end = False
        self._is_after_cr = False
        self._is_begun = False

    def split(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that are complete with `chunk`."""
        if not self._is_begun:
            chunk = self._without_bom(chunk)
        if self._is_after_cr and chunk:
            # The CR has already ended its line: skip the LF of a CRLF that was cut in two.
            self._is_after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._is_after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not chunk:
            return []
        return self._split_lines(chunk)

    def _without_bom(self, chunk: bytes) -> bytes:
        begun = b"".join((*self._pending, chunk))
        self._pending.clear()
        if len(begun) < len(BOM) and BOM.startswith(begun):
            self._pending.append(begun)
            return b""
        self._is_begun = True
        return begun.removeprefix(BOM)

    def _split_lines(self, chunk: bytes) -> list[SseEvent]:
        is_end = b"\n\n" in chunk or (self._ends_in_line_end and chunk.startswith(b"\n"))
        self._ends_in_line_end = chunk.endswith(b"\n")
        self._pending.append(chunk)
        self._size += len(chunk)
        if not is_end:
            if self._size > self._max_event_bytes:
                raise EventTooLong(
                    f"an event of the upstream's answer exceeds {self._max_event_bytes} bytes"
                )
            return []
        *blocks, rest = b"".join(self._pending).split(b"\n\n")
        self._pending = [rest] if rest else []
        self._size = len(rest)
        # A line end before the rest belongs to the previous block.
        self._ends_in_line_end = rest.endswith(b"\n")
        return [event for block in blocks if (event := read_block(block.split(b"\n"))) is not None]


def read_block(lines: list[bytes]) -> SseEvent | None:
    """Return the event of a block, or None for a block without data."""
    kind = b""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line.startswith(b"event:"):
            kind = line[7:] if line[6:7] == b" " else line[6:]
        elif line == b"data":
            data.append(b"")
    if not data:
        return None
    joined = data[0] if len(data) == 1 else b"\n".join(data)
    return SseEvent(kind.decode("utf-8", "replace") or "message", joined)
