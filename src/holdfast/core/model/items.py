"""Items of a transcript: their bytes, unchanged, and the few fields that are read from them.

An item is a JSON object in the Responses format. Unknown types and fields are kept and passed on
unchanged.
"""

import json
import re
from hashlib import blake2b
from typing import Any
from unicodedata import normalize

import msgspec

from holdfast.core.errors import InvalidItem

OUTPUT_SUFFIX = "_output"
ROLES = ("user", "assistant", "system", "developer")
"""The roles that every server accepts."""
ERASED_ITEM = b'{"type":"erased"}'
"""The body of an item whose content was erased for good."""
TRACES = frozenset(
    {
        "reasoning", "web_search_call", "file_search_call", "code_interpreter_call",
        "image_generation_call", "mcp_list_tools", "mcp_call", "tool_search_call",
        "tool_search_output", "gateway_call", "gateway_call_output", "gateway_approval",
        "gateway_list_tools", "gateway_reminder",
    }
)  # fmt: skip
"""Items that a provider or the gateway adds while it works on an answer; many clients drop them."""
MAX_ID_BYTES = 1024
"""A longer id stays only in its item's bytes; the item is listed under an id of the gateway."""
SHORT_ID = MAX_ID_BYTES // 4
"""An id of at most this many characters has at most `MAX_ID_BYTES` bytes."""
MAX_DEPTH = 500
"""The levels of a JSON value. Python decodes about 1,000, fewer if called from deep in the code."""
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
"""The strings of a JSON value."""
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


class NewItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An item that is not stored yet."""

    body: bytes
    kind: str
    item_id: str | None
    call_id: str | None
    fingerprint: bytes
    is_instruction: bool = False
    """Whether it replaces the session's earlier instructions."""


class StoredItem(msgspec.Struct, frozen=True, gc=False):
    """An item of a transcript. `is_partial` marks output of a run that never finished."""

    session_id: str
    seq: int
    turn_number: int
    kind: str
    item_id: str | None
    call_id: str | None
    fingerprint: bytes
    is_partial: bool
    body: bytes

    def as_new(self) -> NewItem:
        """Return the item as a new item, to append it again."""
        return NewItem(self.body, self.kind, self.item_id, self.call_id, self.fingerprint)


class _Head(msgspec.Struct, gc=False):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: Any = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    encrypted_content: Any = None
    content: Any = None
    output: Any = None


class _Role(msgspec.Struct, gc=False):
    role: str | None = None


_read_head = msgspec.json.Decoder(_Head).decode
read_role = msgspec.json.Decoder(_Role).decode
"""Read the role of a message's body."""
_encode = msgspec.json.Encoder().encode


def read_item(body: bytes) -> NewItem:
    """Return `body` as an item, with its bytes unchanged; raise if it is not valid."""
    try:
        body.decode()  # the decoder skips unknown fields, which must be valid UTF-8 too
        head = _read_head(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidItem(f"an item must be a JSON object of the Responses format: {exc}") from exc
    if is_too_deep(body):
        raise InvalidItem(f"nested in more than {MAX_DEPTH} levels")
    kind = head.type or ("message" if head.role else None)
    if not kind:
        raise InvalidItem("an item needs a 'type' or a 'role'")
    call_id = head.call_id
    if "\0" in kind or (call_id is not None and "\0" in call_id):
        raise InvalidItem("the type and the call_id of an item have no NUL characters")
    item_id = head.id or None
    if item_id is not None and (len(item_id) > SHORT_ID or "\0" in item_id):
        item_id = _usable_id(item_id)
    return NewItem(body, kind, item_id, call_id, _fingerprint(kind, head))


def is_too_deep(body: bytes) -> bool:
    """Return whether a JSON value is nested in more than `MAX_DEPTH` levels."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    brackets = STRINGS.sub(b"", body).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
        if not brackets:
            return False
    return True


def item_value(body: bytes) -> dict[str, Any]:
    """Return the decoded body of an item; a number too large for a float becomes infinity."""
    value: dict[str, Any]
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = json.loads(body, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # Python converts 4,300 digits at most
        return float(digits)


def _usable_id(given: str) -> str | None:
    """Return an id if it can be stored and looked up, or None."""
    return None if "\0" in given or len(given.encode()) > MAX_ID_BYTES else given


def write_item(value: dict[str, Any]) -> NewItem:
    """Return a JSON value as an item; raise if it is not valid."""
    try:
        return read_item(msgspec.json.encode(value))
    except (TypeError, UnicodeEncodeError, msgspec.EncodeError, RecursionError) as exc:
        raise InvalidItem(f"an item must be made of JSON values: {exc}") from exc


def message(role: str, text: str, body: bytes | None = None, item_id: str | None = None) -> NewItem:
    """Return a message of one text; with `body`, the item that `read_item` would return for it."""
    if body is None:
        part = "output_text" if role == "assistant" else "input_text"
        value = {"type": "message", "role": role, "content": [{"type": part, "text": text}]}
        try:
            body = _encode(value)
        except (TypeError, UnicodeEncodeError) as exc:
            raise InvalidItem(f"an item must be made of JSON values: {exc}") from exc
    comparable = f"{role}\0{text.strip()}"
    if "\r" in comparable or not comparable.isascii():
        comparable = comparable_text(comparable)
    fingerprint = blake2b(comparable.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return NewItem(body, "message", item_id, None, fingerprint)


def _fingerprint(kind: str, head: _Head) -> bytes:
    """Hash what makes two items the same to a reader: role, text, call, arguments, output.

    Ids, annotations, outer white space, the style of line ends and Unicode composition do not
    count. Reasoning and other items that a provider adds by itself have no fingerprint, so that the
    histories of clients that drop them still match.
    """
    if kind in TRACES:
        return b""
    if kind in ("message", "gateway_words"):
        text = f"{head.role}\0{_text(head.content)}"
    elif kind.endswith(OUTPUT_SUFFIX):
        text = f"{kind}\0{_text(head.output)}"
    else:
        arguments = _arguments(head.arguments) + _more_arguments(head)
        text = f"{kind}\0{head.name}\0{arguments}\0{_text(head.content)}"
    return _hashed(text)


def comparable_text(text: str) -> str:
    """Return text as it is compared: line ends as line feeds, characters composed (NFC)."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.isascii() else normalize("NFC", text)


def _hashed(text: str) -> bytes:
    if "\r" in text or not text.isascii():
        text = comparable_text(text)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        text = ""
        for part in content:
            # Nearly every part is a text: avoid a function call for it.
            is_text = type(part) is dict and "text" in part and type(part["text"]) is str
            text += part["text"] if is_text else _part(part)
        return text.strip()
    return msgspec.json.encode(content, order="deterministic").decode()


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return text
        part = {name: value for name, value in part.items() if name != "annotations"}
    return msgspec.json.encode(part, order="deterministic").decode()


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return str(arguments).strip()
    encoded = msgspec.json.encode(arguments, order="deterministic")
    if b"\\r" in encoded:
        encoded = msgspec.json.encode(_with_line_feeds(arguments), order="deterministic")
    return encoded.decode()


def _more_arguments(head: _Head) -> str:
    """Return the content of calls that have no `arguments`, as text without nulls."""
    parts = (head.input, head.action, head.operation, head.encrypted_content)
    if all(part is None for part in parts):
        return ""
    values = [part.strip() if isinstance(part, str) else _without_nulls(part) for part in parts]
    return msgspec.json.encode(values, order="deterministic").decode()


def _with_line_feeds(value: Any) -> Any:
    """Return a JSON value with the line ends of its texts as line feeds."""
    if isinstance(value, str):
        return comparable_text(value)
    if isinstance(value, dict):
        return {name: _with_line_feeds(part) for name, part in value.items()}
    return [_with_line_feeds(part) for part in value] if isinstance(value, list) else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value
