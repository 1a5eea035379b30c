"""Request bodies: JSON objects whose values stay the bytes they came in."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.server.errors import UnsupportedType
from holdfast.http.server.types import Request

Fields = dict[str, msgspec.Raw]

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def read_fields(request: Request) -> Fields:
    """Return the body's top-level fields, each as raw JSON."""
    sent = request.by_name
    if b"content-type" not in sent or sent[b"content-type"] != b"application/json":
        _check_type(request.header(b"content-type") or "")
    if b"content-encoding" in sent:
        _check_encoding(request.header(b"content-encoding") or "identity")
    return parse_fields(await request.body())


def _check_type(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedType("send the body as application/json")


def _check_encoding(given: str) -> None:
    if given.strip().lower() != "identity":
        raise UnsupportedType("send the body as it is, without a Content-Encoding")


async def read_optional_fields(request: Request) -> Fields:
    """Return the fields of a body that may be left out altogether."""
    return await read_fields(request) if await request.body() else {}


def parse_fields(body: bytes) -> Fields:
    """Return the fields of a JSON object; every byte of it must be text."""
    try:
        if not body.isascii():
            body.decode()
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(f"the body is not a JSON object: {exc}") from exc


def take(fields: Fields, name: str, kind: Any, default: Any = None) -> Any:
    """Take a field out of the body, decoded; a wrong type is the caller's mistake."""
    if name not in fields:
        return default
    try:
        value = _decoder(kind)(fields.pop(name))
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}") from exc
    return default if value is None else value


@cache
def _decoder(kind: Any) -> Callable[[msgspec.Raw], Any]:
    """Return what reads a value of a type, or null; there are as many as the code names."""
    return msgspec.json.Decoder(kind | None).decode


def take_list(fields: Fields, name: str) -> list[msgspec.Raw] | None:
    """Take a field that is a list, its entries raw."""
    raw = fields.pop(name, None)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}") from exc
