"""The head of a response: read on demand, as the HTTP parser reads it."""

import asyncio
import itertools

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.http.connection import UpstreamConnection

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True)
VALUES = st.from_regex(rb"[!-~\x80-\xff]([ -~\x80-\xff]{0,20}[!-~])?|", fullmatch=True)
BLANKS = st.sampled_from([b"", b" ", b"\t ", b"   "])


class _Transport(asyncio.Transport):
    """Sends nothing."""

    def writelines(self, list_of_data: object) -> None:
        """Ignore the request."""

    def abort(self) -> None:
        """Ignore the end."""


class _Reference:
    """The headers as the parser reports them."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header; values of one name are joined by commas."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")
        self.found[key] = f"{self.found[key]}, {text}" if key in self.found else text


def _received(pieces: list[bytes]) -> UpstreamConnection:
    loop = asyncio.new_event_loop()
    try:
        connection = UpstreamConnection(loop)
        connection.connection_made(_Transport())
        connection.send("POST", [])
        for piece in pieces:
            connection.data_received(piece)
        return connection
    finally:
        loop.close()


@given(
    headers=st.lists(st.tuples(NAMES, BLANKS, VALUES, BLANKS), max_size=12),
    interim=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 400), max_size=4),
)
def test_headers_are_those_that_the_parser_reports(
    headers: list[tuple[str, bytes, bytes, bytes]], interim: int, cuts: list[int]
) -> None:
    framing = {"content-length", "transfer-encoding", "connection", "upgrade"}
    lines = [
        b"%b:%b%b%b" % (name.encode(), before, value, after)
        for name, before, value, after in headers
        if name.lower() not in framing
    ]
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"Content-Length: 4"]) + b"\r\n\r\n"
    reference = _Reference()
    httptools.HttpResponseParser(reference).feed_data(head)
    data = b"HTTP/1.1 103 Early Hints\r\nX-Hint: a\r\n\r\n" * interim + head + b"\r\n\r\n"
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    connection = _received(pieces)
    assert connection.has_head
    assert connection.headers == reference.found
    assert connection.may_be_encoded >= ("content-encoding" in reference.found)
    assert connection.read_buffered() == b"\r\n\r\n"


@pytest.mark.parametrize("blanks", [b"\r\n", b"\r\n\r\n"])
def test_empty_lines_before_a_head_are_skipped(blanks: bytes) -> None:
    connection = _received([blanks + b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n"])
    assert connection.headers == {"a": "b", "content-length": "0"}
