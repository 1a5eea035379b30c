"""Write a history as the input for a Responses server without stored state.

The input is self-contained: ids are left out, references are resolved within the history, and
encrypted reasoning is sent only to its owner. Everything else keeps its bytes.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.providers.items.ids import fitting_call_id
from holdfast.providers.items.seal_owner import SealOwner

MAX_CALL_ID = 64
MAX_ID = 64
_WITHOUT_ID = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call_output", "web_search_call", "compaction",
    }
)  # fmt: skip
"""Items that are sent without their ids; servers require the ids of all others."""
_PLAIN = frozenset(
    {
        "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output",
    }
)  # fmt: skip
_ENCRYPTED = frozenset({"reasoning", "compaction"})
"""Items that are useless without their encrypted content."""
_NO_ID: dict[str, str | None] = {"id": None}
_UNMARKED = (None, None, None)
_UNFINISHED = ("in_progress", "incomplete")
_OUTPUT_END = "_output"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Head(msgspec.Struct, gc=False):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    status: str | None = None
    encrypted_content: Any = None
    name: Any = None


_read_head = msgspec.json.Decoder(_Head).decode


class ReplayedInput(msgspec.Struct, frozen=True):
    """The input of a request, and the index of each item's source in the history."""

    items: list[bytes]
    sources: list[int]
    call_ids: set[str]
    """The ids of all calls in the history, whether they are sent or not."""
    is_settled: bool
    """Whether later items cannot change how these are written: no reference among them may resolve
    to a later item, and no reasoning waits for its result."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How to write a history for one model."""

    owner: SealOwner
    is_opaque_allowed: bool = True
    """False after the server refused encrypted content."""
    is_plain: bool = False
    """True after the server refused the form of a call: only messages, calls and outputs."""

    def items(self, history: Sequence[bytes], among: Sequence[bytes] | None = None) -> list[bytes]:
        """Return the input items of a request; references are resolved in `among`."""
        return self.write(history, among).items

    def write(
        self,
        history: Sequence[bytes],
        among: Sequence[bytes] | None = None,
        used_ids: set[str] | None = None,
    ) -> ReplayedInput:
        """Return the input of a request; add its item ids to `used_ids`, the ids sent before."""
        items: list[bytes] = []
        sources: list[int] = []
        heads: list[_Head] = []
        used_ids = set() if used_ids is None else used_ids
        call_ids: set[str] = set()
        has_references, has_reasoning = False, False
        for place, given in enumerate(history):
            head, body = _read_head(given), given
            if head.call_id is not None:
                call_ids.add(head.call_id)
            if head.type == "item_reference":
                has_references = True
                item = find_item(head.id, history if among is None else among)
                if item is None:
                    continue
                head, body = _read_head(item), item
            written: bytes | None = body
            marks = (head.call_id, head.encrypted_content, head.name)
            if head.type != "message" or marks != _UNMARKED:
                written = self._write(head, body, used_ids)
            elif head.id is not None:
                written = _with_changes(head, body, _NO_ID)
            if written is None:
                continue
            has_reasoning = has_reasoning or head.type == "reasoning"
            items.append(written)
            sources.append(place)
            heads.append(head)
        is_settled = not has_references and (not heads or heads[-1].type != "reasoning")
        if has_reasoning:
            followed = _with_successors(heads)
            items, sources = [items[at] for at in followed], [sources[at] for at in followed]
        return ReplayedInput(items, sources, call_ids, is_settled=is_settled)

    def _write(self, head: _Head, body: bytes, used_ids: set[str]) -> bytes | None:
        kind = head.type or "message"
        if self.is_plain and kind not in _PLAIN:
            return None
        is_encrypted = head.encrypted_content is not None
        if kind in _ENCRYPTED and (head.status in _UNFINISHED or not is_encrypted):
            return None
        changed: dict[str, str | None] = {}
        if is_encrypted:
            changed["encrypted_content"] = self._unmark(head.encrypted_content)
            if changed["encrypted_content"] is None and kind in _ENCRYPTED:
                return None
        if head.call_id is not None and len(head.call_id) > MAX_CALL_ID:
            changed["call_id"] = fitting_call_id(head.call_id, MAX_CALL_ID)
        if head.id is not None:
            item_id = None if kind in _WITHOUT_ID else _unused_id(head.id, used_ids)
            if item_id != head.id:
                changed["id"] = item_id
        if kind == "message" and head.name is not None:
            changed["name"] = None  # only the Chat API has participants' names
        return _with_changes(head, body, changed) if changed else body

    def _unmark(self, content: Any) -> str | None:
        return self.owner.unmark(content) if self.is_opaque_allowed else None


def _with_changes(head: _Head, body: bytes, changed: dict[str, str | None]) -> bytes:
    """Return an item with fields set, or removed where the value is None."""
    if changed == _NO_ID:
        # Most items of a model begin with their id: remove it without parsing the rest.
        first = b'{"id":"' + (head.id or "").encode() + b'",'
        if body.startswith(first):
            return b"{" + body[len(first) :]
    item = {**_decode(body), **changed}
    return _encode({k: v for k, v in item.items() if v is not None or k not in changed})


def _unused_id(item_id: str, used_ids: set[str]) -> str:
    """Return an id of a valid length that no earlier item has."""
    if len(item_id) > MAX_ID or item_id in used_ids:
        seed = f"{item_id}\0{len(used_ids)}".encode()
        digest = hashlib.blake2b(seed, digest_size=12).hexdigest()
        prefix = item_id.partition("_")[0]
        item_id = f"{prefix if 0 < len(prefix) <= 8 else 'item'}_{digest}"
    used_ids.add(item_id)
    return item_id


def sent_ids(history: Sequence[bytes], new: Sequence[bytes]) -> set[str]:
    """Return the ids that a server has received with a history, if any new item needs its id."""
    if not any(_is_sent_with_id(body) for body in new):
        return set()
    heads = (_read_head(body) for body in history if b'"id"' in body)
    return {head.id for head in heads if head.id and (head.type or "message") not in _WITHOUT_ID}


def _is_sent_with_id(body: bytes) -> bool:
    if b'"id"' not in body:
        return False
    head = _read_head(body)
    return head.id is not None and (head.type or "message") not in _WITHOUT_ID


def find_item(item_id: Any, history: Sequence[bytes]) -> bytes | None:
    """Return the item of a history that a reference names, or None if it is not there."""
    for body in history:
        head = _read_head(body)
        if head.id == item_id and head.type != "item_reference":
            return body
    return None


def _with_successors(heads: list[_Head]) -> list[int]:
    """Return the indexes of all items, except reasoning that its result does not follow."""
    kept: list[int] = []
    for place in range(len(heads) - 1, -1, -1):
        if heads[place].type != "reasoning" or (kept and _is_model_output(heads[kept[-1]])):
            kept.append(place)
    kept.reverse()
    return kept


def _is_model_output(head: _Head) -> bool:
    """Return whether a model completed an item, so that reasoning may have led to it."""
    if head.type in (None, "message"):
        return head.role == "assistant" and head.status not in _UNFINISHED
    return not head.type.endswith(_OUTPUT_END)
