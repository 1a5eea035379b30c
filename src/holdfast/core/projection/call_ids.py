"""The ids of calls in one request: unique, short, and of letters that every server takes.

A call keeps its id where it can. A second call of the same id, and one that no server would take,
go by a name that depends on nothing but the log, so that it is the same in every request.
"""

import hashlib
import re

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.synthetic_outputs import OUTPUT_OF

MAX_CALL_ID = 40
"""The longest call id that every kind of server takes."""
_is_plain = re.compile(r"[A-Za-z0-9_-]{1,40}").fullmatch

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def is_sendable(call_id: str) -> bool:
    """Whether every kind of server takes this call id."""
    return _is_plain(call_id) is not None


def sendable(call_id: str, salt: str = "") -> str:
    """Return a call id that every server takes, always the same for the same one."""
    if not salt and is_sendable(call_id):
        return call_id
    told = f"{call_id}\0{salt}".encode("utf-8", "surrogatepass")
    return "call_" + hashlib.blake2b(told, digest_size=12).hexdigest()


class CallIdAllocator:
    """Gives the calls of one request their names."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._given: dict[int, str] = {}

    def name_of(self, call: StoredItem) -> str:
        """Return the name that a call was given."""
        return self._given[call.seq]

    def of_call(self, call: StoredItem) -> bytes:
        """Return a call under its name."""
        assert call.call_id is not None
        name = sendable(call.call_id)
        if name in self._taken:
            name = sendable(call.call_id, str(call.seq))
        self._taken.add(name)
        self._given[call.seq] = name
        return call.body if name == call.call_id else _renamed(call, {"call_id": name})

    def of_output(self, call: StoredItem, output: StoredItem) -> bytes:
        """Return the output of a call under the call's name, and as the kind that it wants."""
        changed = {}
        if self._given[call.seq] != output.call_id:
            changed["call_id"] = self._given[call.seq]
        kind = OUTPUT_OF.get(call.kind)
        if kind is not None and output.kind != kind:
            changed["type"] = kind
        return _renamed(output, changed) if changed else output.body


def _renamed(item: StoredItem, changed: dict[str, str]) -> bytes:
    return _encode({**_decode(item.body), **changed})
