"""Server-sent events out of bytes that may be cut anywhere.

Lines end in LF, CR or CRLF; comments, `id` and `retry` are skipped; several `data` lines are one
event. What stands behind the last empty line when the bytes end is no event.
"""

import msgspec

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 64 * 1024 * 1024


class EventTooLong(Exception):
    """An event has more bytes than any honest one."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event; its type is `message` where the server names none."""

    type: str
    data: bytes


class SseSplitter:
    """Takes bytes as they arrive and gives the events that they complete."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._kept: list[bytes] = []
        self._size = 0
        self._ends_in_line_end = False
        self._is_after_cr = False
        self._is_begun = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that are complete with `chunk`."""
        if self._is_begun and not self._kept and not self._is_after_cr and chunk.endswith(b"\n"):
            lines = chunk.splitlines()
            if not lines.pop() and b"" not in lines:
                # What most chunks are: one event, whole.
                self._ends_in_line_end = False
                event = _read_block(lines)
                return [event] if event is not None else []
        if not self._is_begun:
            chunk = self._without_bom(chunk)
        if self._is_after_cr and chunk:
            # The CR ended its line when it came; the LF of a CRLF cut in two adds none.
            self._is_after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._is_after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not chunk:
            return []
        return self._split(chunk)

    def _without_bom(self, chunk: bytes) -> bytes:
        begun = b"".join((*self._kept, chunk))
        self._kept.clear()
        if len(begun) < len(_BOM) and _BOM.startswith(begun):
            self._kept.append(begun)
            return b""
        self._is_begun = True
        return begun.removeprefix(_BOM)

    def _split(self, chunk: bytes) -> list[SseEvent]:
        is_end = b"\n\n" in chunk or (self._ends_in_line_end and chunk.startswith(b"\n"))
        self._ends_in_line_end = chunk.endswith(b"\n")
        self._kept.append(chunk)
        self._size += len(chunk)
        if not is_end:
            if self._size > self._max_event_bytes:
                raise EventTooLong(f"an event has more than {self._max_event_bytes} bytes")
            return []
        *blocks, rest = b"".join(self._kept).split(b"\n\n")
        self._kept = [rest] if rest else []
        self._size = len(rest)
        # An end that stands before the rest has been used up with it.
        self._ends_in_line_end = rest.endswith(b"\n")
        return [event for block in blocks if (event := _read_block(block.split(b"\n"))) is not None]


def _read_block(lines: list[bytes]) -> SseEvent | None:
    """Return the event of a block; most have one line of data, behind their name or alone."""
    match lines:
        case [name, told] if name.startswith(b"event: ") and told.startswith(b"data: "):
            return SseEvent(name[7:].decode("utf-8", "replace") or "message", told[6:])
        case [told] if told.startswith(b"data: "):
            return SseEvent("message", told[6:])
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
