"""The call ids of one request: unique, short, and of characters that every server accepts.

A call keeps its id where possible. A duplicate id, and one that some server would reject, is
replaced by one that depends only on the log, so that it is the same in every request.
"""

import hashlib
import re

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.synthetic_outputs import OUTPUT_OF

MAX_CALL_ID = 40
"""The longest call id that every kind of server accepts."""
_is_plain = re.compile(r"[A-Za-z0-9_-]{1,40}").fullmatch

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def is_sendable(call_id: str) -> bool:
    """Whether every kind of server accepts this call id."""
    return _is_plain(call_id) is not None


def sendable(call_id: str, salt: str = "") -> str:
    """Return a call id that every server accepts, always the same one for the same input."""
    if not salt and is_sendable(call_id):
        return call_id
    text = f"{call_id}\0{salt}".encode("utf-8", "surrogatepass")
    return "call_" + hashlib.blake2b(text, digest_size=12).hexdigest()


class CallIdAllocator:
    """Assigns the call ids of one request."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._given: dict[int, str] = {}

    def id_of(self, call: StoredItem) -> str:
        """Return the id that a call was assigned."""
        return self._given[call.seq]

    def of_call(self, call: StoredItem) -> bytes:
        """Return the body of a call with its assigned id."""
        assert call.call_id is not None
        name = sendable(call.call_id)
        if name in self._taken:
            name = sendable(call.call_id, str(call.seq))
        self._taken.add(name)
        self._given[call.seq] = name
        return call.body if name == call.call_id else _renamed(call, {"call_id": name})

    def of_output(self, call: StoredItem, output: StoredItem) -> bytes:
        """Return the body of an output with the id of its call, and of the kind the call needs."""
        changed = {}
        if self._given[call.seq] != output.call_id:
            changed["call_id"] = self._given[call.seq]
        kind = OUTPUT_OF.get(call.kind)
        if kind is not None and output.kind != kind:
            changed["type"] = kind
        return _renamed(output, changed) if changed else output.body


def _renamed(item: StoredItem, changed: dict[str, str]) -> bytes:
    return _encode({**_decode(item.body), **changed})
