"""A history as input of a Responses server that keeps nothing for us: complete in itself.

No item refers to anything stored there: ids are left out, references are resolved from the
history itself, and sealed reasoning goes back to its maker alone. Everything else stays the bytes
it is.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.providers.names import fitting_call_id
from holdfast.providers.origin import Maker

MAX_CALL_ID = 64
_NAMELESS = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call_output", "web_search_call", "compaction",
    }
)  # fmt: skip
"""Items that need no id; the rest are only understood with theirs."""
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


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How a history is shown to one maker."""

    maker: Maker
    is_opaque_allowed: bool = True
    """False once the maker has refused what was sealed."""

    def items(self, history: Sequence[bytes]) -> list[msgspec.Raw]:
        """Return the input items of a request."""
        shown: list[tuple[_Head, bytes]] = []
        for given in history:
            head, body = _read_head(given), given
            if head.type == "item_reference":
                found = find_referred(head.id, history)
                if found is None:
                    continue
                head, body = _read_head(found), found
            written = self._write(head, body)
            if written is not None:
                shown.append((head, written))
        return [
            msgspec.Raw(body)
            for index, (head, body) in enumerate(shown)
            if head.type != "reasoning" or _leads_on(shown, index)
        ]

    def _write(self, head: _Head, body: bytes) -> bytes | None:
        kind = head.type or "message"
        is_sealed = head.encrypted_content is not None
        if kind == "reasoning" and (head.status in _UNFINISHED or not is_sealed):
            return None
        sealed: str | None = None
        if is_sealed:
            sealed = self._open(head.encrypted_content)
            if sealed is None and kind == "reasoning":
                return None
        is_long = head.call_id is not None and len(head.call_id) > MAX_CALL_ID
        has_id = head.id is not None and kind in _NAMELESS
        if not (has_id or is_long or (is_sealed and sealed != head.encrypted_content)):
            return body
        item = _decode(body)
        if has_id:
            del item["id"]
        if is_long and head.call_id is not None:
            item["call_id"] = fitting_call_id(head.call_id, MAX_CALL_ID)
        if is_sealed:
            item["encrypted_content"] = sealed
            if sealed is None:
                del item["encrypted_content"]
        return _encode(item)

    def _open(self, content: Any) -> str | None:
        return self.maker.unmark(content) if self.is_opaque_allowed else None


def find_referred(name: Any, history: Sequence[bytes]) -> bytes | None:
    """Return the item of a history that a reference names; None when it is out of sight."""
    for body in history:
        head = _read_head(body)
        if head.id == name and head.type != "item_reference":
            return body
    return None


def _leads_on(shown: list[tuple[_Head, bytes]], index: int) -> bool:
    """Reasoning goes with the item of the model that it led to, or not at all."""
    if index + 1 >= len(shown):
        return False
    following = shown[index + 1][0]
    if following.type in (None, "message"):
        return following.role == "assistant" and following.status not in _UNFINISHED
    return not following.type.endswith(_MODEL_KINDS_END)
