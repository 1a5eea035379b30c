"""Item ids: every item has one, even if its bytes contain none.

The stored bytes are not changed. The name of an item is stored separately and inserted when the
item is shown. If several visible items share an id, the first keeps it. The others get a name from
the id and their sequence number, so that a cursor always means one item. Ids that the gateway
creates end with the sequence number of their item, so that it is found without an index.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.gateway_items import GATEWAY_KINDS, client_item
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Span

PREFIXES: dict[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "file_search_call": "fs",
    "web_search_call": "ws",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "image_generation_call": "ig",
    "code_interpreter_call": "ci",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
}
OTHER_PREFIX = "item"
SEPARATOR = "."
MIN_RANDOM_ID = 32
"""Shorter ids are not changed: with six random digits fewer they would not be unique."""
MAX_PLACE = 0xFFFFFF
"""The last sequence number that six hexadecimal digits can express."""


def mint_name(kind: str, session_id: str, seq: int, now: float) -> str:
    """Return an id for an item without one: hard to guess, and it ends with the sequence number.

    It begins with the time, like other ids.
    """
    digest = hashlib.blake2b(f"{session_id}\0{seq}".encode(), digest_size=7).hexdigest()
    return f"{PREFIXES.get(kind, OTHER_PREFIX)}_{int(now * 1000):011x}{digest}{seq:06x}"


def place_in(item_id: str) -> int | None:
    """Return the sequence number at the end of an id, or None if there cannot be one.

    It is a guess: the caller has to check whether the item there has this id.
    """
    try:
        return int(item_id[-6:], 16)
    except ValueError:
        return None


def with_place(item_id: str, seq: int) -> str:
    """Return a random id that ends with `seq`; a short id, or a large `seq`, changes nothing."""
    if len(item_id) < MIN_RANDOM_ID or not 0 < seq <= MAX_PLACE:
        return item_id
    return f"{item_id[:-6]}{seq:06x}"


def owner_of(places: Sequence[int], hidden: Sequence[Span]) -> int | None:
    """Return which of several items with one id keeps it: the first visible, else the first."""
    for seq in places:
        if not any(first <= seq <= last for first, last in hidden):
            return seq
    return places[0] if places else None


def name_at(item_id: str, seq: int) -> str:
    """Return the name of an item whose id already names another item."""
    return f"{item_id}{SEPARATOR}{seq}"


def split_name(name: str) -> tuple[str, int] | None:
    """Return the id and the sequence number in a name that `name_at` made, or None."""
    item_id, found, number = name.rpartition(SEPARATOR)
    if not found or not (number.isascii() and number.isdecimal() and len(number) < 16):
        return None
    return item_id, int(number)


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def shown(item: StoredItem, name: str) -> bytes:
    """Return an item as lists show it: with its name, and a short message in its full form."""
    body = item.body
    if item.kind in GATEWAY_KINDS:
        body = client_item(body) or body
    fields = _read_fields(body)
    added: dict[str, Any] = {}
    if _text(fields.get("id")) != name:
        added["id"] = name
    if item.kind == "message":
        added |= _spelled_out(item, fields)
    if not added:
        return body
    return _encode({**fields, **added})


def _spelled_out(item: StoredItem, fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the fields that are optional in a sent message and required in a listed one."""
    added: dict[str, Any] = {}
    if "type" not in fields:
        added["type"] = "message"
    if _text(fields.get("status")) is None:
        added["status"] = "incomplete" if item.is_partial else "completed"
    text = _text(fields.get("content"))
    if text is None:
        return added
    if _text(fields.get("role")) == "assistant":
        added["content"] = [{"type": "output_text", "text": text, "annotations": []}]
    else:
        added["content"] = [{"type": "input_text", "text": text}]
    return added


def _text(raw: msgspec.Raw | None) -> str | None:
    if raw is None or bytes(raw).lstrip()[:1] != b'"':
        return None
    return msgspec.json.decode(raw, type=str)
