"""The wire below HTTP: heads that are bounded, and refusals of what is no HTTP in the one shape.

Uvicorn reads a head of any length and refuses in plain text; this is its protocol with both mended.
"""

from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.ingress.http.problems import problem_value

_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}
_encode = msgspec.json.Encoder().encode


class HeadTooLong(Exception):
    """More came than a head may have."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection; a request's path and headers have a length that they do not go beyond."""

    max_head_bytes = 64 * 1024

    _came_bytes = 0
    """What came since the head that is being read began, without the piece it began in."""
    _read_bytes = 0
    """What of it is read: the path and whole headers."""
    _is_in_head = False
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        """Read on; what came of a head that has not ended yet counts, whatever it will be."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if not (was_in_head and self._is_in_head) or self._is_refused:
            return
        self._came_bytes += len(data)
        if self._came_bytes > self.max_head_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Begin with a new request's head."""
        self._is_in_head = True
        self._came_bytes = self._read_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the path."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a whole header."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Go on to what the request asks for."""
        self._is_in_head = False
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._read_bytes += size
        if self._read_bytes > self.max_head_bytes:
            raise HeadTooLong

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the shape says it better
        """Refuse what cannot be read; the parser says so of a head that was too long as well."""
        if self._read_bytes > self.max_head_bytes:
            self._refuse_head()
        else:
            self._refuse(400, "the request is not valid HTTP", code="invalid_http")

    def _refuse_head(self) -> None:
        limit = f"the headers of a request have at most {self.max_head_bytes} bytes"
        self._refuse(431, limit, code="headers_too_large")

    def _refuse(self, status: int, message: str, *, code: str) -> None:
        self._is_refused = True
        body = _encode(problem_value(status, message, code=code))
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n" % (status, _REASONS[status], len(body))
        )
        self.transport.write(head + body)
        self.transport.close()


def bounded_protocol(max_head_bytes: int) -> type[BoundedProtocol]:
    """Return the protocol with heads of at most so many bytes."""
    made: dict[str, Any] = {"max_head_bytes": max_head_bytes}
    return type("BoundedProtocol", (BoundedProtocol,), made)
