"""What a provider's refusal means: one class for each, by its code first and by its words second.

Real servers send several of these with no code at all, and a few under codes that say nothing, so
the words matter. Everything unknown is judged by its status.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.errors import FailureClass, ProviderFailure
from holdfast.core.redaction import redact
from holdfast.providers.patience import retry_after

MAX_MESSAGE = 4000

_BY_CODE: dict[str, FailureClass] = {
    "previous_response_not_found": "stale_state",
    "invalid_encrypted_content": "foreign_opaque",
    "conversation_locked": "busy",
    "context_length_exceeded": "overflow",
    "string_above_max_length": "shape",
    "insufficient_quota": "terminal",
    "rate_limit_exceeded": "transient",
    "server_error": "transient",
    "overloaded_error": "transient",
    "invalid_api_key": "terminal",
    "model_not_found": "terminal",
    **dict.fromkeys(
        (
            "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url",
            "image_too_large", "image_too_small", "image_parse_error", "invalid_image_mode",
            "image_file_too_large", "unsupported_image_media_type", "empty_image_file",
            "failed_to_download_image", "image_file_not_found", "image_content_policy_violation",
            "invalid_file", "file_not_found", "unsupported_file",
        ),
        "poison",
    ),
}  # fmt: skip

_WORDS: tuple[tuple[str, FailureClass], ...] = (
    (r"previous response with id .+ not found", "stale_state"),
    (r"item with id .+ not found", "stale_state"),
    (r"conversation with id .+ not found", "stale_state"),
    (r"no conversation found with session id", "stale_state"),
    (r"encrypted content .*could not be (verified|decrypted)", "foreign_opaque"),
    (r"invalid `?signature`? in `?thinking`?", "foreign_opaque"),
    (r"`?thinking`? or `?redacted_thinking`? blocks .*cannot be modified", "foreign_opaque"),
    (r"thought signature is not valid", "foreign_opaque"),
    (r"another (process|request) is currently", "busy"),
    (r"without its required following item", "shape"),
    (r"no tool output found for", "shape"),
    (r"no tool call found for", "shape"),
    (r"duplicate item found", "shape"),
    (r"must be followed by tool messages", "shape"),
    (r"must be a response to a prece(e)?ding message with", "shape"),
    (r"tool_use`? ids (were found without|must be unique)", "shape"),
    (r"unexpected `?tool_use_id`? found", "shape"),
    (r"roles must alternate", "shape"),
    (r"exceeds the context window", "overflow"),
    (r"maximum context length", "overflow"),
    (r"exceeds? (the )?(available )?context (limit|size|length|window)", "overflow"),
    (r"input token count .*exceeds", "overflow"),
    (r"(input|prompt|request) is too long", "overflow"),
    (r"could not process image", "poison"),
    (r"image format .+ not supported", "poison"),
    (r"(invalid|unsupported) image", "poison"),
    (r"(image|file) (data )?you (provided|uploaded)", "poison"),
    (r"(while|failed to|could not|unable to) (download|fetch)", "poison"),
    (r"no such file object", "poison"),
    (r"\bfile\b.{0,80} (has expired|(was |is )?not found|does not exist)", "poison"),
    (r"exceeded your current quota", "terminal"),
)
_BY_TEXT = tuple((re.compile(words, re.IGNORECASE), kind) for words, kind in _WORDS)

_PLACE = re.compile(r"\b(?:input|messages)(?:\.|\[|\.\[)(\d{1,6})\b")
_CONTENT = re.compile(r"\.(?:text|output|arguments|content|image_url|file_data|input)\b")
_REQUEST_STATUSES = frozenset({400, 413, 415, 422})
_BY_STATUS: dict[int, FailureClass] = {409: "busy", 413: "overflow"}
_ITEM_STATUSES = _REQUEST_STATUSES | {404, None}
_TOO_LARGE = re.compile(r"request too large for", re.IGNORECASE)
OVERFLOW_CODE = "context_length_exceeded"
_MODEL_STATE_PARAMS = frozenset({"previous_response_id", "conversation"})


class _Error(msgspec.Struct):
    message: Any = None
    type: Any = None
    param: Any = None
    code: Any = None
    status: Any = None
    details: Any = None


def classify(
    *,
    status: int | None,
    code: str | None = None,
    kind: str | None = None,
    message: str = "",
    param: str | None = None,
) -> FailureClass:
    """Return the class of a failure; `status` is None for one that came inside a stream."""
    if code == "string_above_max_length" and _CONTENT.search(param or message):
        return "poison"  # too long is what was said, not what it is called
    if _TOO_LARGE.match(message):
        return "overflow"  # more at once than the account may send in a minute: less helps
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    for pattern, found in _BY_TEXT:
        if pattern.search(message):
            if found == "poison" and status not in _ITEM_STATUSES:
                continue  # a server that could not fetch something of its own
            # Gemini's quota text comes with the time to wait: then it is a limit, not an end.
            return "transient" if kind == "RESOURCE_EXHAUSTED" else found
    if status in _REQUEST_STATUSES and names_item(param, message) is not None:
        # One item is at fault, whatever the words: others can go on without it.
        return "poison"
    if kind is not None and kind in _BY_CODE:
        return _BY_CODE[kind]
    return _by_status(status, kind, param)


def names_item(param: str | None, message: str) -> int | None:
    """Return the place of the item that a refusal names, in the request's own list."""
    for said in (param or "", message):
        found = _PLACE.search(said)
        if found is not None:
            return int(found[1])
    return None


def _by_status(status: int | None, kind: str | None, param: str | None) -> FailureClass:
    if status is None:
        return "terminal" if kind == "invalid_request_error" else "transient"
    if status == 404 and param in _MODEL_STATE_PARAMS:
        return "stale_state"
    if status in (408, 425, 429) or status >= 500:
        return "transient"
    return _BY_STATUS.get(status, "terminal")


def failure_of(
    status: int, headers: Mapping[str, str], body: bytes, *, names_state: bool = False
) -> ProviderFailure:
    """Return a provider's error answer as a failure, in its own words.

    `names_state` says that the request named something the provider keeps: a bare 404 then means
    that it is gone.
    """
    error = _read(body)
    code, kind = _text(error.code), _text(error.type) or _text(error.status)
    message = _text(error.message) or _plain(body) or f"the upstream answered {status}"
    param = _text(error.param)
    found = classify(status=status, code=code, kind=kind, message=message, param=param)
    if found == "terminal" and status == 404 and names_state and code != "model_not_found":
        found = "stale_state"
    return ProviderFailure(
        redact(message[:MAX_MESSAGE]),
        failure_class=found,
        # Our key, not the caller's: its refusal is a fault of the gateway.
        status=502 if status in (401, 403) else status,
        provider_code=_code_of(found, status, code),
        provider_type=_text(error.type),
        param=param,
        retry_after=retry_after(headers, error.details, message),
    )


def _code_of(found: FailureClass, status: int, given: str | None) -> str | None:
    """Return the code that clients know a failure by, where the server gave none but a number."""
    if found == "overflow" and (given is None or given.isdecimal()):
        return OVERFLOW_CODE
    return given or ("upstream_unauthorized" if status in (401, 403) else None)


def failure_in_stream(error: Any) -> ProviderFailure:
    """Return an error that came inside a stream, nested or flat, as a failure."""
    fields = error if isinstance(error, dict) else {}
    code, kind = _text(fields.get("code")), _text(fields.get("type"))
    message = _text(fields.get("message")) or "the upstream broke off with an error"
    kind = None if kind == "error" else kind
    found = classify(status=None, code=code, kind=kind, message=message)
    return ProviderFailure(
        redact(message[:MAX_MESSAGE]),
        failure_class=found,
        status=_status_in_stream(found, code, kind),
        provider_code=code,
        provider_type=kind,
        param=_text(fields.get("param")),
        retry_after=retry_after({}, fields.get("details"), message),
    )


def _status_in_stream(found: FailureClass, code: str | None, kind: str | None) -> int:
    """Return the status that a failure would have had, had it come before the stream."""
    if found == "overflow" or kind == "invalid_request_error":
        return 400
    return 429 if code in ("rate_limit_exceeded", "insufficient_quota") else 502


def broken(message: str, code: str, *, status: int = 502) -> ProviderFailure:
    """Return a failure of the line itself, which says nothing about the request."""
    return ProviderFailure(
        message, failure_class="transient", status=status, provider_code=code,
        provider_type="server_error",
    )  # fmt: skip


def _read(body: bytes) -> _Error:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Error()
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return _Error()
    error = value.get("error", value)
    if isinstance(error, str):
        return _Error(message=error, type=value.get("type"), code=value.get("code"))
    if not isinstance(error, dict):
        return _Error(message=value.get("detail") or value.get("message"))
    if "message" not in error and "detail" in error:
        return _Error(message=error["detail"])
    return msgspec.convert({k: v for k, v in error.items() if isinstance(k, str)}, _Error)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _plain(body: bytes) -> str:
    text = body[:MAX_MESSAGE].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text
