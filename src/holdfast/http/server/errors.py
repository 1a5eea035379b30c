"""Error replies in the shape that clients of OpenAI's APIs expect, with the right status."""

import math
from typing import Any

import msgspec

from holdfast.core import errors as err
from holdfast.core.decisions.api_keys import NotAllowed, NotAuthenticated
from holdfast.core.decisions.channels.outbox import MessageSettled
from holdfast.engine.streaming.event_feed import TooManyFollowers
from holdfast.http.server.memory_budget import ServerBusy, ShareExceeded
from holdfast.http.server.types import JSON, BodyTooLarge, Header, Reply
from holdfast.ports.channel import DeliveryDelayed, WebhookRejected


class UnsupportedMediaType(err.InvalidInput):
    """The request's Content-Type or Content-Encoding is not accepted."""

    code = "unsupported_media_type"


class TooManyItems(err.InvalidInput):
    """The request has more items or JSON values than the gateway decodes."""

    code = "too_many_items"


class RequestTimeout(err.HoldfastError):
    """A body or message came too slowly."""

    code = "request_timeout"
    retryable = True


class ClientLeft(err.HoldfastError):
    """The client closed its connection before the answer, which nobody else can read."""

    code = "client_left"


class TooManyExports(err.HoldfastError):
    """The tenant, or the process, has as many open exports as it may."""

    code = "too_many_exports"
    retryable = True


class RateLimited(err.HoldfastError):
    """The tenant exceeded `limits.requests_per_minute`."""

    code = "rate_limit_exceeded"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


STATUS: dict[type[err.HoldfastError], int] = {
    BodyTooLarge: 413,
    TooManyItems: 413,
    UnsupportedMediaType: 415,
    ServerBusy: 503,
    ShareExceeded: 429,
    NotAuthenticated: 401,
    WebhookRejected: 401,
    NotAllowed: 403,
    ClientLeft: 499,
    RateLimited: 429,
    RequestTimeout: 408,
    err.InvalidInput: 400,
    MessageSettled: 409,
    DeliveryDelayed: 503,
    err.NotFound: 404,
    err.Conflict: 409,
    err.SessionRetired: 409,
    err.SessionChanged: 409,
    err.SessionBusy: 409,
    err.SessionMoved: 409,
    err.RunStateUsed: 409,
    err.TurnAlreadyDone: 409,
    err.SessionHasForks: 409,
    err.SessionDeleted: 404,
    err.IdempotencyMismatch: 422,
    err.TurnCancelled: 409,
    err.TurnInterrupted: 503,
    err.LaneFull: 429,
    TooManyFollowers: 429,
    TooManyExports: 429,
    err.LaneTimeout: 429,
    err.TenantFull: 429,
    err.StorageFull: 429,
    err.ApprovalForbidden: 403,
    err.RunFenced: 503,
    err.TurnFailed: 502,
    err.ProviderFailure: 502,
    err.StoreUnavailable: 503,
    err.SessionLost: 503,
    err.StoreClosed: 503,
    err.StoreError: 500,
}
"""Status by error class; the nearest class in the MRO decides."""

RETRY_AFTER: dict[type[err.HoldfastError], int] = {
    ServerBusy: 5,
    ShareExceeded: 5,
    err.SessionBusy: 1,
    err.LaneFull: 2,
    TooManyFollowers: 5,
    TooManyExports: 5,
    err.SessionLost: 10,
    err.LaneTimeout: 2,
    err.TenantFull: 2,
}
"""Seconds by error class; of every other error with status 503 it is `UNAVAILABLE_SECONDS`."""
UNAVAILABLE_SECONDS = 1
_NEVER_RETRY = (err.TurnCancelled, err.SessionRetired, err.SessionChanged, err.StorageFull)
MAX_CLIENT_WAIT_SECONDS = 60.0
"""SDKs ignore a Retry-After longer than this and retry at once."""
NO_RETRY: Header = (b"x-should-retry", b"false")

MAX_MESSAGE = 8000
"""Characters of an error's message."""
MAX_PARAM = 256
_encode = msgspec.json.Encoder().encode


def error_reply(
    status: int, message: str, *, code: str | None, param: str | None = None,
    kind: str | None = None, headers: tuple[Header, ...] = (),
) -> Reply:  # fmt: skip
    """Return an error reply."""
    body = error_value(status, message, code=code, param=param, kind=kind)
    return Reply(_encode(body), status=status, headers=[JSON, *headers])


def error_value(
    status: int, message: str, *, code: str | None, param: str | None = None,
    kind: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the error object; a message that quotes a long value is cut."""
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "…"
    return {
        "error": {
            "message": message,
            "type": kind or _type_of(status),
            "param": param and param[:MAX_PARAM],
            "code": code,
        }
    }


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def reply_for_error(error: err.HoldfastError) -> Reply:
    """Return the reply for one of our errors."""
    if isinstance(error, err.ProviderFailure):
        return _provider_reply(error)
    status = _status(type(error))
    if isinstance(error, err.TurnFailed):
        status = _recorded_status(error.failure_code, status)
    headers: list[Header] = []
    default = UNAVAILABLE_SECONDS if status == 503 else None
    kinds = type(error).__mro__
    seconds = next((RETRY_AFTER[kind] for kind in kinds if kind in RETRY_AFTER), default)
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", str(math.ceil(error.retry_after_seconds)).encode()))
    if isinstance(error, BodyTooLarge | ServerBusy | ShareExceeded):
        # The rest of a body may be on its way.
        headers.append((b"connection", b"close"))
    if isinstance(error, NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, _NEVER_RETRY):
        headers.append(NO_RETRY)
    if isinstance(error, err.SessionRetired | err.SessionChanged) and error.live_id is not None:
        headers.append((b"x-session-id", error.live_id.encode()))
    code = error.failure_code if isinstance(error, err.TurnFailed) else error.code
    return error_reply(status, error.message, code=code, param=error.param, headers=tuple(headers))


def error_event(reply: Reply) -> dict[str, Any]:
    """Return an error reply as an event of a WebSocket."""
    value: dict[str, Any] = {"type": "error", "status": reply.status}
    value |= msgspec.json.decode(reply.body)
    value["error"]["headers"] = {
        name.decode(): text.decode() for name, text in reply.headers if name != b"content-type"
    }
    return value


def _status(kind: type[err.HoldfastError]) -> int:
    return next((STATUS[base] for base in kind.__mro__ if base in STATUS), 500)


def _recorded_status(code: str, default: int) -> int:
    """Return the status of a recorded error code, if Holdfast defines it."""
    kinds = [err.HoldfastError]
    for kind in kinds:
        if kind.code == code and kind is not err.HoldfastError:
            return _status(kind)
        kinds += kind.__subclasses__()
    return default


def _provider_reply(error: err.ProviderFailure) -> Reply:
    """Pass on a provider's own error; failures without a usable status become 502."""
    headers: list[Header] = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
        if error.retry_after > MAX_CLIENT_WAIT_SECONDS:
            # SDKs ignore such a long Retry-After and would retry immediately.
            headers.append(NO_RETRY)
    status = error.status if error.status is not None and 400 <= error.status < 600 else 502
    return error_reply(
        status,
        error.message,
        code=error.provider_code or error.code,
        param=error.param,
        kind=error.provider_type,
        headers=tuple(headers),
    )
