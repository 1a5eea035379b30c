"""HTTP calls to a platform's API; each failure says whether the platform may have acted."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from holdfast.channels.platform_json import decode_json
from holdfast.ports.channel import DeliveryDelayed, DeliveryRefused
from holdfast.ports.http_client import HttpCaller, HttpResult, HttpUnavailable

CALL_SECONDS = 4.0
"""Limit of a call that sends something; below half a lease."""
FILE_SECONDS = 30.0
UPLOAD_SECONDS = 60.0
"""Limit of a call that sends a file; no other worker sends it while this one is alive."""

T = TypeVar("T")


async def post(
    http: HttpCaller,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    seconds: float = CALL_SECONDS,
    may_repeat: bool = False,
    max_bytes: int | None = None,
) -> HttpResult:
    """Call an API method and return its answer; raise `DeliveryDelayed` if there is none."""
    try:
        return await http.call(
            "POST", url, headers=headers, body=body, seconds=seconds, may_repeat=may_repeat,
            max_bytes=max_bytes,
        )  # fmt: skip
    except HttpUnavailable as exc:
        raise DeliveryDelayed(f"{method}: {exc.message}", is_uncertain=exc.is_sent) from exc


def read_reply(method: str, result: HttpResult, kind: type[T]) -> T:
    """Return the decoded reply; raise `DeliveryDelayed` if it is not one of the API."""
    try:
        return decode_json(result.body, kind)
    except msgspec.DecodeError:
        # A proxy may have answered after the API had acted.
        reason = f"{method}: HTTP {result.status} without a valid reply"
        raise DeliveryDelayed(reason, is_uncertain=True) from None


async def download_file(
    http: HttpCaller, url: str, max_bytes: int, *, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a file; raise `DeliveryRefused` if it is too large or not available."""
    try:
        result = await http.call(
            "GET",
            url,
            headers=headers,
            seconds=FILE_SECONDS,
            may_repeat=True,
            # One more byte shows that a file is too large; the rest of it is not read.
            max_bytes=max_bytes + 1,
        )
    except HttpUnavailable as exc:
        raise DeliveryDelayed(exc.message) from exc
    if result.status == 429 or result.status >= 500:
        raise DeliveryDelayed(f"the file cannot be downloaded: HTTP {result.status}")
    if result.status != 200:
        raise DeliveryRefused(f"the file cannot be downloaded: HTTP {result.status}")
    if len(result.body) > max_bytes:
        raise DeliveryRefused(f"the file is longer than {max_bytes} bytes")
    return result.body
