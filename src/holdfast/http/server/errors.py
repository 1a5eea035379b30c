"""Errors as clients of OpenAI's APIs expect them: one shape, a status that means something."""

import math
from typing import Any

import msgspec

from holdfast.core import errors as err
from holdfast.core.decisions.api_keys import NotAllowed, NotAuthenticated
from holdfast.engine.streaming.event_feed import TooManyFollowers
from holdfast.http.server.types import JSON, BodyTooLarge, Header, Reply


class UnsupportedType(err.InvalidInput):
    """The body is not JSON by its own account."""

    code = "unsupported_media_type"


class RateLimited(err.HoldfastError):
    """The tenant sent more requests in a minute than it may."""

    code = "rate_limit_exceeded"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


STATUS: dict[type[err.HoldfastError], int] = {
    BodyTooLarge: 413,
    UnsupportedType: 415,
    NotAuthenticated: 401,
    NotAllowed: 403,
    RateLimited: 429,
    err.InvalidInput: 400,
    err.NotFound: 404,
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
    err.LaneTimeout: 429,
    err.TenantFull: 429,
    err.StorageFull: 429,
    err.RunFenced: 503,
    err.TurnFailed: 502,
    err.ProviderFailure: 502,
    err.StoreUnavailable: 503,
    err.StoreClosed: 503,
    err.StoreError: 500,
}
"""The nearest class in an error's line decides."""

RETRY_AFTER: dict[type[err.HoldfastError], int] = {
    err.SessionBusy: 1,
    err.LaneFull: 2,
    TooManyFollowers: 5,
    err.StoreUnavailable: 1,
    err.TurnInterrupted: 1,
    err.LaneTimeout: 2,
    err.TenantFull: 2,
}
_NOT_AGAIN = (err.TurnCancelled, err.SessionRetired, err.SessionChanged, err.StorageFull)
LONG_SECONDS = 60.0
"""More than this, no client waits by itself."""
NO_RETRY: Header = (b"x-should-retry", b"false")

_encode = msgspec.json.Encoder().encode


def problem(
    status: int, message: str, *, code: str | None, param: str | None = None,
    kind: str | None = None, headers: tuple[Header, ...] = (),
) -> Reply:  # fmt: skip
    """Return an error answer in the one shape there is."""
    body = problem_value(status, message, code=code, param=param, kind=kind)
    return Reply(_encode(body), status=status, headers=[JSON, *headers])


def problem_value(
    status: int, message: str, *, code: str | None, param: str | None = None,
    kind: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the error object."""
    return {
        "error": {
            "message": message,
            "type": kind or _type_of(status),
            "param": param,
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


def reply_to(error: err.HoldfastError) -> Reply:
    """Return the answer to an error of ours."""
    if isinstance(error, err.ProviderFailure):
        return _provider_problem(error)
    status = _status(type(error))
    if isinstance(error, err.TurnFailed):
        status = _recorded_status(error.failure_code, status)
    headers: list[Header] = []
    seconds = next((RETRY_AFTER[kind] for kind in type(error).__mro__ if kind in RETRY_AFTER), None)
    if seconds is not None:
        headers.append((b"retry-after", str(seconds).encode()))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", str(math.ceil(error.retry_after_seconds)).encode()))
    if isinstance(error, BodyTooLarge):
        headers.append((b"connection", b"close"))
    if isinstance(error, NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, _NOT_AGAIN):
        headers.append(NO_RETRY)
    if isinstance(error, err.SessionRetired | err.SessionChanged) and error.live_id is not None:
        headers.append((b"x-session-id", error.live_id.encode()))
    code = error.failure_code if isinstance(error, err.TurnFailed) else error.code
    return problem(status, error.message, code=code, param=error.param, headers=tuple(headers))


def _status(kind: type[err.HoldfastError]) -> int:
    return next((STATUS[one] for one in kind.__mro__ if one in STATUS), 500)


def _recorded_status(code: str, otherwise: int) -> int:
    """Return the status of the error that was recorded by its code, if it is one of ours."""
    kinds = [err.HoldfastError]
    for kind in kinds:
        if kind.code == code and kind is not err.HoldfastError:
            return _status(kind)
        kinds += kind.__subclasses__()
    return otherwise


def _provider_problem(error: err.ProviderFailure) -> Reply:
    """Pass a provider's refusal on in its own words; its breakdowns are a bad gateway."""
    headers: list[Header] = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
        if error.retry_after > LONG_SECONDS:
            # Clients take so long a time for none, and would be back in a moment.
            headers.append(NO_RETRY)
    status = error.status if error.status is not None and 400 <= error.status < 600 else 502
    return problem(
        status,
        error.message,
        code=error.provider_code or error.code,
        param=error.param,
        kind=error.provider_type,
        headers=tuple(headers),
    )
