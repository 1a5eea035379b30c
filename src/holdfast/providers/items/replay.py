"""A history as input of a Responses server that keeps nothing for us: complete in itself.

No item refers to anything stored there: ids are left out, references are resolved from the
history itself, and sealed reasoning goes back to its maker alone. Everything else stays the bytes
it is.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.providers.items.ids import fitting_call_id
from holdfast.providers.items.seal_owner import SealOwner

MAX_CALL_ID = 64
MAX_ID = 64
_NAMELESS = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call_output", "web_search_call", "compaction",
    }
)  # fmt: skip
"""Items that need no id; the rest are only understood with theirs."""
_PLAIN = frozenset(
    {
        "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output",
    }
)  # fmt: skip
_SEALED = frozenset({"reasoning", "compaction"})
"""Items that are nothing without what is sealed in them."""
_UNFINISHED = ("in_progress", "incomplete")
_MODEL_KINDS_END = "_output"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Head(msgspec.Struct, gc=False):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    status: str | None = None
    encrypted_content: Any = None


_read_head = msgspec.json.Decoder(_Head).decode


class Written(msgspec.Struct, frozen=True):
    """The input of a request, and for each item the place in the history that it came from."""

    items: list[bytes]
    sources: list[int]
    call_ids: set[str]
    """The ids of the calls in the history, shown or not."""
    is_settled: bool
    """Whether nothing that comes behind can change how this is written: it ends with a message
    that is shown, and no reference in it may find something that comes later."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How a history is shown to one maker."""

    maker: SealOwner
    is_opaque_allowed: bool = True
    """False once the maker has refused what was sealed."""
    is_plain: bool = False
    """True once the maker has refused the form: then words, calls and outputs are all there is."""

    def items(self, history: Sequence[bytes], among: Sequence[bytes] | None = None) -> list[bytes]:
        """Return the input items of a request; references are looked up `among` all there is."""
        return self.write(history, among).items

    def write(
        self,
        history: Sequence[bytes],
        among: Sequence[bytes] | None = None,
        taken: set[str] | None = None,
    ) -> Written:
        """Return the input of a request; `taken` are the ids before it, and then also its own."""
        items: list[bytes] = []
        sources: list[int] = []
        heads: list[_Head] = []
        taken = set() if taken is None else taken
        named: set[str] = set()
        has_references, has_reasoning, is_ended = False, False, False
        for place, given in enumerate(history):
            head, body = _read_head(given), given
            if head.call_id is not None:
                named.add(head.call_id)
            is_ended = head.type is None or head.type == "message"
            if head.type == "item_reference":
                has_references = True
                found = find_referred(head.id, history if among is None else among)
                if found is None:
                    continue
                head, body = _read_head(found), found
            # A message that names nothing goes as it is.
            is_bare = is_ended and head.id is None and head.encrypted_content is None
            is_bare = is_bare and head.call_id is None
            written = body if is_bare else self._write(head, body, taken)
            if written is None:
                is_ended = False
                continue
            has_reasoning = has_reasoning or head.type == "reasoning"
            items.append(written)
            sources.append(place)
            heads.append(head)
        if has_reasoning:
            led = _with_successors(heads)
            items, sources = [items[at] for at in led], [sources[at] for at in led]
        return Written(items, sources, named, is_settled=is_ended and not has_references)

    def _write(self, head: _Head, body: bytes, taken: set[str]) -> bytes | None:
        kind = head.type or "message"
        if self.is_plain and kind not in _PLAIN:
            return None
        is_sealed = head.encrypted_content is not None
        if kind in _SEALED and (head.status in _UNFINISHED or not is_sealed):
            return None
        changed: dict[str, str | None] = {}
        if is_sealed:
            changed["encrypted_content"] = self._open(head.encrypted_content)
            if changed["encrypted_content"] is None and kind in _SEALED:
                return None
        if head.call_id is not None and len(head.call_id) > MAX_CALL_ID:
            changed["call_id"] = fitting_call_id(head.call_id, MAX_CALL_ID)
        if head.id is not None:
            name = None if kind in _NAMELESS else _free_name(head.id, taken)
            if name != head.id:
                changed["id"] = name
        return _changed(head, body, changed) if changed else body

    def _open(self, content: Any) -> str | None:
        return self.maker.unmark(content) if self.is_opaque_allowed else None


def _changed(head: _Head, body: bytes, changed: dict[str, str | None]) -> bytes:
    """Return an item with fields set, or left out where they are None."""
    if changed == {"id": None}:
        # Most items that a model made begin with their id: the rest is not even read.
        first = b'{"id":"' + (head.id or "").encode() + b'",'
        if body.startswith(first):
            return b"{" + body[len(first) :]
    item = {**_decode(body), **changed}
    return _encode({k: v for k, v in item.items() if v is not None or k not in changed})


def _free_name(name: str, taken: set[str]) -> str:
    """Return an id that fits and that no item before has."""
    if len(name) > MAX_ID or name in taken:
        told = hashlib.blake2b(f"{name}\0{len(taken)}".encode(), digest_size=12).hexdigest()
        prefix = name.partition("_")[0]
        name = f"{prefix if 0 < len(prefix) <= 8 else 'item'}_{told}"
    taken.add(name)
    return name


def kept_names(history: Sequence[bytes], new: Sequence[bytes]) -> set[str]:
    """Return the ids that a server was sent with a history, if any of what is new brings one."""
    if not any(b'"id"' in body for body in new):
        return set()
    heads = (_read_head(body) for body in history if b'"id"' in body)
    return {head.id for head in heads if head.id and (head.type or "message") not in _NAMELESS}


def find_referred(name: Any, history: Sequence[bytes]) -> bytes | None:
    """Return the item of a history that a reference names; None when it is out of sight."""
    for body in history:
        head = _read_head(body)
        if head.id == name and head.type != "item_reference":
            return body
    return None


def _with_successors(heads: list[_Head]) -> list[int]:
    """Return the places of items without the reasoning that is not followed by what it led to."""
    kept: list[int] = []
    for at in range(len(heads) - 1, -1, -1):
        if heads[at].type != "reasoning" or (kept and _is_made(heads[kept[-1]])):
            kept.append(at)
    kept.reverse()
    return kept


def _is_made(head: _Head) -> bool:
    """Whether a model made an item, to its end, so that reasoning may have led to it."""
    if head.type in (None, "message"):
        return head.role == "assistant" and head.status not in _UNFINISHED
    return not head.type.endswith(_MODEL_KINDS_END)
