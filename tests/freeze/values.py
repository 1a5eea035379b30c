"""Neutral data: values as JSON, one line each, and a readable difference of two recordings."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Data = Any
"""What JSON can say."""

MAX_SHOWN = 40
"""The most lines of a difference that a failing test shows."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def line(value: Data) -> str:
    """Return a value as one line of JSON, with the keys of every object in order."""
    return _encode(value).decode()


def read_lines(text: str) -> list[Data]:
    """Return the values of lines of JSON; empty lines and lines of comment are skipped."""
    lines = (each for each in text.split("\n") if each.strip() and not each.startswith("#"))
    return [msgspec.json.decode(each) for each in lines]


def plain(value: object) -> Data:
    """Return a value as data; fields of a value that have their default are left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return plain_bytes(bytes(value))
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=line)
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return str(value)


def _plain_struct(value: msgspec.Struct) -> dict[str, Data]:
    shown = {}
    for field in msgspec.structs.fields(value):
        held = getattr(value, field.name)
        if field.default is not msgspec.NODEFAULT and held == field.default:
            continue
        if field.default_factory is not msgspec.NODEFAULT and held == field.default_factory():
            continue
        shown[field.name] = plain(held)
    return shown


def plain_bytes(value: bytes) -> Data:
    """Return bytes as data from which they can be told exactly: a text, or their packed value."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    try:
        packed = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {"hex": value.hex()}
    if msgspec.msgpack.encode(packed) == value and not isinstance(packed, int):
        return {"packed": plain(packed)}
    return {"hex": value.hex()}


class Shown:
    """Values with an identity that a recording has shown: it shows again only what changed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, Data]] = {}

    def changes(self, kind: str, value: dict[str, Data]) -> dict[str, Data]:
        """Return the fields that differ from the last time, None where one has its default."""
        key = (kind, str(value["id"]))
        before, self._last[key] = self._last.get(key), value
        if before is None:
            return value
        changed = {name: each for name, each in value.items() if before.get(name) != each}
        gone = {name: None for name in before if name not in value}
        return {"id": value["id"], **changed, **gone}


def difference(expected: Sequence[str], seen: Sequence[str]) -> str:
    """Return what differs, as lines to read; nothing if both are equal."""
    if list(expected) == list(seen):
        return ""
    lines = list(difflib.unified_diff(expected, seen, "expected", "seen", lineterm="", n=1))
    more = len(lines) - MAX_SHOWN
    shown = [each if len(each) <= 2000 else f"{each[:2000]}…" for each in lines[:MAX_SHOWN]]
    marks = _first_place(lines)
    rest = [f"… and {more} more lines"] if more > 0 else []
    return "\n".join([*shown, *marks, *rest])


def _first_place(lines: Sequence[str]) -> list[str]:
    """Point at the first byte that differs, because lines may be long."""
    removed = next((each[1:] for each in lines[2:] if each.startswith("-")), None)
    added = next((each[1:] for each in lines[2:] if each.startswith("+")), None)
    if removed is None or added is None:
        return []
    pairs = enumerate(zip(removed, added, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), None)
    if place is None:
        place = min(len(removed), len(added))
    start = max(place - 60, 0)
    return [
        f"first difference, at character {place}:",
        f"  expected …{removed[start : place + 60]}…",
        f"  seen     …{added[start : place + 60]}…",
    ]
