"""Request bodies: JSON objects whose values stay raw bytes until needed, and their metadata."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import MAX_DEPTH, is_too_deep
from holdfast.http.server.errors import UnsupportedMediaType
from holdfast.http.server.types import Request

Fields = dict[str, msgspec.Raw]
MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512
MAX_METADATA_BYTES = 256 * 1024
"""Larger than any valid metadata, even with all characters escaped; more is not decoded."""

_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def read_fields(request: Request) -> Fields:
    """Return the body's top-level fields, each as raw JSON."""
    check_content_type(request)
    return parse_fields(await request.body())


def check_content_type(request: Request) -> None:
    """Reject a body that is not plain JSON by its own headers."""
    headers = request.by_name
    if headers.get(b"content-type") != b"application/json":
        _check_type(request.header(b"content-type") or "")
    if b"content-encoding" in headers:
        _check_encoding(request.header(b"content-encoding") or "identity")


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType(
            f"send the body as application/json, not {kind or 'without a Content-Type'}"
        )


def _check_encoding(encoding: str) -> None:
    if encoding.strip().lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding!r} is not supported; send the body without one"
        )


async def read_optional_fields(request: Request) -> Fields:
    """Return the fields of an optional body."""
    return await read_fields(request) if await request.body() else {}


async def read_no_fields(request: Request) -> None:
    """Reject a body with fields, on an endpoint of our own that has none."""
    reject_unknown(await read_optional_fields(request))


def reject_unknown(fields: Fields) -> None:
    """Raise for a field that is left when an endpoint of our own has removed those it knows.

    A field that is not read could change what is asked for, such as a misspelt condition. OpenAI's
    endpoints ignore unknown fields or pass them on.
    """
    if fields:
        name = min(fields)[:MAX_KEY]
        raise InvalidInput(f"unknown field {name!r}", param=name)


def parse_fields(body: bytes) -> Fields:
    """Return the fields of a JSON object in valid UTF-8."""
    try:
        if not body.isascii():
            body.decode()
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(
            _lone_surrogate(body) or f"the body is not a JSON object: {exc}"
        ) from exc


def check_readable(fields: Fields) -> None:
    """Reject values that are valid JSON and that cannot be decoded when they are needed."""
    for name, raw in fields.items():
        try:
            _decode(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidInput(f"{name}: {exc}", param=name) from exc
        if is_too_deep(bytes(raw)):
            raise InvalidInput(f"{name}: nested in more than {MAX_DEPTH} levels", param=name)


def _lone_surrogate(body: bytes) -> str | None:
    """Return the message for a body with half a surrogate pair, which is not Unicode text.

    JavaScript clients send it if they cut a text inside an emoji; the decoder's own message does
    not say so.
    """
    match = _LONE_SURROGATE.match(body)
    if match is None:
        return None
    escape = match[1].decode()
    return (
        f"the body has half a surrogate pair ({escape}) at byte {match.start(1)}: "
        "a character such as an emoji was cut in two"
    )


def pop_field(fields: Fields, name: str, kind: Any, default: Any = None) -> Any:
    """Remove a field and return it decoded; null and a missing field give `default`."""
    if name not in fields:
        return default
    try:
        value = _decoder(kind)(fields.pop(name))
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}", param=name) from exc
    return default if value is None else value


@cache
def _decoder(kind: Any) -> Callable[[msgspec.Raw], Any]:
    """Return a decoder for a type or null; the cache is bounded by the types in the code."""
    return msgspec.json.Decoder(kind | None).decode


def pop_list(fields: Fields, name: str) -> list[msgspec.Raw] | None:
    """Remove a list field and return its entries as raw JSON."""
    raw = fields.pop(name, None)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"{name}: {exc}", param=name) from exc


_decode_metadata = msgspec.json.Decoder(dict[str, str] | None).decode


class InvalidMetadata(InvalidInput):
    """Metadata has at most 16 pairs; keys have up to 64 characters, values up to 512."""

    code = "invalid_metadata"


def pop_metadata(fields: Fields) -> bytes | None:
    """Remove `metadata` from the fields and return it as stored; `None` if it was not sent."""
    raw = fields.pop("metadata", None)
    if raw is None:
        return None
    if memoryview(raw).nbytes > MAX_METADATA_BYTES:
        raise InvalidMetadata(f"metadata has at most {MAX_PAIRS} pairs of {MAX_VALUE} characters")
    try:
        pairs = _decode_metadata(raw) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidMetadata(f"metadata: {exc}") from exc
    if len(pairs) > MAX_PAIRS:
        raise InvalidMetadata(f"metadata has at most {MAX_PAIRS} pairs, not {len(pairs)}")
    for key, value in pairs.items():
        if len(key) > MAX_KEY:
            raise InvalidMetadata(f"a metadata key has at most {MAX_KEY} characters")
        if len(value) > MAX_VALUE:
            raise InvalidMetadata(f"metadata[{key!r}] has more than {MAX_VALUE} characters")
    return msgspec.json.encode(pairs)
