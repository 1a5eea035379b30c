"""Between the SDK's dicts and our bytes: whole lists at a time, and no object that nobody needs."""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import InvalidItem
from holdfast.core.ids import SessionId
from holdfast.core.model.items import OUTPUT_SUFFIX, NewItem, item_value, read_item

Item = dict[str, Any]


class Read(NamedTuple):
    """The end of what is visible of a session: none, if there is no such session."""

    session_id: SessionId | None
    listed: bytes = b"[]"
    """Its items, as a JSON list."""
    head_seq: int = 0


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Of what JSON has no words for, nothing is written in other words: it is refused."""
_write_fast = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_all = msgspec.json.Decoder(list[Item]).decode
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


_is_number = re.compile(r"(?:.*[^0-9A-Za-z])?[0-9]{1,4}", re.DOTALL).fullmatch
"""Whether an id counts calls, as `call_0`, and is none that was drawn to come once."""


def to_items(values: Iterable[Any]) -> tuple[NewItem, ...]:
    """Return the SDK's items as ours."""
    return tuple(read_item(_to_bytes(value)) for value in values)


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise InvalidItem(f"an item is a dict, not {type(value).__name__}")
    try:
        # It writes much that is no JSON in words of its own: what it wrote has to read the same.
        body = _write_fast(value)
        if _decode(body) == value:
            return body
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # of what it cannot write, the other one can write some
    try:
        return _utf8(_write(value))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidItem(f"an item must be made of JSON values: {exc}") from exc


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Characters in two halves are put together; half of one is nothing that could be kept.
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode()


def to_values(listed: bytes) -> list[Item]:
    """Return items as the SDK knows them, decoded in one go."""
    try:
        return _decode_all(listed)
    except msgspec.DecodeError:
        # A number that fits no float, say: one by one, each as well as it can be read.
        return [item_value(bytes(one)) for one in _split(listed)]


def to_context(listed: bytes, *, is_begin: bool = False) -> list[Item]:
    """Return items as a run of the SDK may be shown them: no two calls by one id.

    Local servers number their calls from zero in every answer, and the SDK takes calls of one id
    for one call, of which it keeps the last. At the begin of a run, every pair is told apart whose
    id the run's own calls may have. Later the newest pair keeps its id, as it is compared with what
    the run has in hand. What is stored stays as it came.
    """
    values = to_values(listed)
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        call_id = value.get("call_id")
        if call_id is not None:
            places.setdefault(call_id, []).append(place)
    for call_id, shared in places.items():
        if len(shared) > 1:
            _tell_apart(values, shared, call_id, is_begin=is_begin)
    return values


def _tell_apart(values: list[Item], places: list[int], call_id: str, *, is_begin: bool) -> None:
    calls = 0
    unanswered: list[int] = []
    pairs: list[tuple[int, int]] = []
    for place in places:
        if str(values[place].get("type", "")).endswith(OUTPUT_SUFFIX):
            pair = unanswered.pop(0) if unanswered else calls
        else:
            calls += 1
            pair = calls
            unanswered.append(pair)
        pairs.append((place, pair))
    newest = calls
    if is_begin and not unanswered and (calls > 1 or _is_number(call_id)):
        newest += 1  # the one that is to come
    for place, pair in pairs:
        if pair < newest:
            values[place]["call_id"] = f"{call_id}~{pair}"
