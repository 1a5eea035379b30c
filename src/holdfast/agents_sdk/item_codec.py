"""Conversion between the SDK's dicts and stored JSON, one decode per list."""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import InvalidItem
from holdfast.core.ids import SessionId
from holdfast.core.model.items import OUTPUT_SUFFIX, NewItem, item_value, message, read_item
from holdfast.core.projection.normalize import valid_arguments

Item = dict[str, Any]


class TranscriptPage(NamedTuple):
    """The visible end of a session; `session_id` is None if there is no session."""

    session_id: SessionId | None
    items_json: bytes = b"[]"
    """The items, as a JSON list."""
    head_seq: int = 0


_encode_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Rejects values that JSON cannot represent instead of approximating them."""
_encode_fast = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_all = msgspec.json.Decoder(list[Item]).decode
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


_TEXT_FIELDS = frozenset({"role", "content"})
_is_counter = re.compile(r"(?:.*[^0-9A-Za-z])?[0-9]{1,4}", re.DOTALL).fullmatch
"""Match ids that count calls, such as `call_0`; a random id occurs once."""


def to_items(values: Iterable[Any]) -> tuple[NewItem, ...]:
    """Convert the SDK's items to stored items."""
    return tuple(map(_to_item, values))


def _to_item(value: Any) -> NewItem:
    if type(value) is dict and value.keys() == _TEXT_FIELDS and value["role"]:
        role, text = value["role"], value["content"]
        if type(role) is str and type(text) is str:
            # As most input is: JSON represents it exactly, and nothing has to be parsed again.
            try:
                return message(role, text, _encode_fast(value))
            except UnicodeEncodeError:
                pass  # lone surrogates, or pairs of them
    return read_item(_to_bytes(value))


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise InvalidItem(f"an item must be a dict, not {type(value).__name__}")
    try:
        # The fast encoder also accepts values that are not JSON; the round trip detects them.
        body = _encode_fast(value)
        if _decode(body) == value:
            return body
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # the strict encoder accepts some values that the fast one rejects
    try:
        return _utf8(_encode_strict(value))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidItem(f"an item must consist of JSON values: {exc}") from exc


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Join surrogate pairs; a lone surrogate raises, as it cannot be stored.
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode()


def to_values(items_json: bytes) -> list[Item]:
    """Decode a JSON list of items to the SDK's dicts."""
    try:
        return _decode_all(items_json)
    except msgspec.DecodeError:
        # For example, a number that fits no float: decode each item separately.
        return [item_value(bytes(item)) for item in _split(items_json)]


def to_context(items_json: bytes, *, is_begin: bool = False) -> list[Item]:
    """Decode items for a run of the SDK, with every call id unique.

    Local servers number their calls from zero in every answer, and the SDK treats calls with one
    id as one call and keeps the last. At the start of a run (`is_begin`) every pair is renamed
    that the run's own calls could collide with. Later the newest pair keeps its id, because the
    SDK compares it with what the run holds. Malformed arguments are sent in an object, for servers
    that refuse others. The stored items do not change.
    """
    values = to_values(items_json)
    positions: dict[str, list[int]] = {}
    for position, value in enumerate(values):
        call_id = value.get("call_id")
        if call_id is not None:
            positions.setdefault(call_id, []).append(position)
        arguments = value.get("arguments")
        if is_begin and isinstance(arguments, str):
            value["arguments"] = valid_arguments(arguments)
    for call_id, shared in positions.items():
        if len(shared) > 1:
            _make_unique(values, shared, call_id, is_begin=is_begin)
    return values


def _make_unique(values: list[Item], positions: list[int], call_id: str, *, is_begin: bool) -> None:
    calls = 0
    unanswered: list[int] = []
    pairs: list[tuple[int, int]] = []
    for position in positions:
        if str(values[position].get("type", "")).endswith(OUTPUT_SUFFIX):
            pair = unanswered.pop(0) if unanswered else calls
        else:
            calls += 1
            pair = calls
            unanswered.append(pair)
        pairs.append((position, pair))
    newest = calls
    if is_begin and not unanswered and (calls > 1 or _is_counter(call_id)):
        newest += 1  # reserve the id for the run's own next call
    for position, pair in pairs:
        if pair < newest:
            values[position]["call_id"] = f"{call_id}~{pair}"
