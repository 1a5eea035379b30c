"""The worker process that decodes large bodies, so that the server's event loop stays free.

Run as `python -m holdfast.http.request.decode_worker`; it ends when its standard input closes.
"""

import struct
import sys
from typing import BinaryIO

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.http.request.decoding import BodyKind, decode_body

REQUEST = struct.Struct(">BIQ")
"""Kind, maximum number of items, size of the body that follows."""
REPLY = struct.Struct(">BQ")
"""Whether it is an error, size of the MessagePack value that follows."""
KINDS: tuple[BodyKind, ...] = ("responses", "chat", "items")


class DecodeError(msgspec.Struct):
    """A client error, as it is sent through the pipe."""

    kind: str
    message: str
    param: str | None


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Decode one body after the other until the input ends."""
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        kind, max_items, size = REQUEST.unpack(head)
        body = source.read(size)
        try:
            value: object = decode_body(KINDS[kind], body, max_items)
            is_error = False
        except HoldfastError as exc:
            value = DecodeError(type(exc).__name__, exc.message, exc.param)
            is_error = True
        del body
        payload = msgspec.msgpack.encode(value)
        sink.write(REPLY.pack(is_error, len(payload)))
        sink.write(payload)
        sink.flush()
        del value, payload


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
