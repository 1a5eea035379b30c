"""Request bodies: JSON objects whose values stay the bytes they came in."""

from typing import Any, TypeVar

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.ingress.http.asgi import Request

ValueT = TypeVar("ValueT")
Fields = dict[str, msgspec.Raw]

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class UnsupportedType(InvalidInput):
    """The body is not JSON by its own account."""

    code = "unsupported_media_type"


async def read_fields(request: Request) -> Fields:
    """Return the body's top-level fields, each as raw JSON."""
    kind = (request.header(b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedType("send the body as application/json")
    if (request.header(b"content-encoding") or "identity").strip().lower() != "identity":
        raise UnsupportedType("send the body as it is, without a Content-Encoding")
    return parse_fields(await request.body())


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


def take(fields: Fields, name: str, kind: type[ValueT] | Any, default: Any = None) -> Any:
    """Take a field out of the body, decoded; a wrong type is the caller's mistake."""
    raw = fields.pop(name, None)
    if raw is None:
        return default
    try:
        value = msgspec.json.decode(raw, type=kind | None)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}") from exc
    return default if value is None else value


def take_list(fields: Fields, name: str) -> list[msgspec.Raw] | None:
    """Take a field that is a list, its entries raw."""
    raw = fields.pop(name, None)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}") from exc
