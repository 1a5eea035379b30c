"""Calls of Slack's Web API; every failure says whether it concerns the message."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast.channels.platform_json import decode_json
from holdfast.ports.channel import (
    DeliveryDelayed,
    DeliveryImpossible,
    DeliveryRefused,
    MessageGone,
)
from holdfast.ports.http_client import HttpCaller, HttpResult, HttpUnavailable

CALL_SECONDS = 4.0
"""Of a call that sends something: below half a lease."""
CREDENTIAL_PAUSE_SECONDS = 30.0
MISSING_SCOPE = "missing_scope"
_CREDENTIALS = frozenset(
    {
        "account_inactive", "invalid_auth", MISSING_SCOPE, "no_permission",
        "not_allowed_token_type", "not_authed", "team_access_not_granted", "token_expired",
        "token_revoked",
    }
)  # fmt: skip
"""Errors that concern everything that is sent: it waits until the operator has corrected them."""
_IMPOSSIBLE = frozenset(
    {
        "cannot_dm_bot", "channel_not_found", "invalid_channel", "is_archived",
        "messages_tab_disabled",
        "not_in_channel", "restricted_action", "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel", "user_disabled", "user_not_found",
        "user_not_visible",
    }
)  # fmt: skip
_GONE = frozenset({"cant_update_message", "edit_window_closed", "message_not_found"})
_AWAY = frozenset(
    {"fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"}
)
_FORMATTING = frozenset({"invalid_blocks", "invalid_blocks_format"})

T = TypeVar("T")


class _Reply(msgspec.Struct):
    ok: bool
    error: str = ""


class WebApi:
    """The methods of one workspace, called with one token."""

    def __init__(self, base_url: str, token: str, http: HttpCaller) -> None:
        self.base_url = base_url
        self._token = token
        self._http = http

    async def call(
        self,
        method: str,
        arguments: Mapping[str, Any],
        answer: type[T],
        *,
        token: str | None = None,
        is_read: bool = False,
    ) -> T:
        """Call a method and return what its reply holds.

        Arguments are form fields, which every method understands; values with structure are JSON.
        """
        fields = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in arguments.items()
        }
        try:
            result = await self._http.call(
                "POST",
                f"{self.base_url}/{method}",
                headers={
                    "authorization": f"Bearer {token or self._token}",
                    "content-type": "application/x-www-form-urlencoded; charset=utf-8",
                },
                body=urlencode(fields).encode(),
                seconds=CALL_SECONDS,
                may_repeat=is_read,
            )
        except HttpUnavailable as exc:
            raise DeliveryDelayed(f"{method}: {exc.message}", is_uncertain=exc.is_sent) from exc
        self._check(method, result)
        try:
            return decode_json(result.body, answer)
        except msgspec.DecodeError:
            reason = f"{method}: a reply without the fields that it must have"
            raise DeliveryDelayed(reason, is_uncertain=True) from None

    def _check(self, method: str, result: HttpResult) -> None:
        if result.status == 429:
            raise DeliveryDelayed(f"{method}: ratelimited", _retry_after(result))
        try:
            reply = decode_json(result.body, _Reply)
        except msgspec.DecodeError:
            # Whatever answered instead of the API, the API may have done what was asked.
            reason = f"{method}: HTTP {result.status} without a reply"
            raise DeliveryDelayed(reason, is_uncertain=True) from None
        if not reply.ok:
            _raise(method, reply.error, result)

    async def fetch(self, url: str, *, seconds: float, max_bytes: int) -> bytes:
        """Return a file from Slack's own hosts, with the token that they ask for."""
        headers = {"authorization": f"Bearer {self._token}"}
        try:
            result = await self._http.call(
                "GET", url, headers=headers, seconds=seconds, may_repeat=True, max_bytes=max_bytes
            )
        except HttpUnavailable as exc:
            raise DeliveryDelayed(exc.message) from exc
        if result.status == 429 or result.status >= 500:
            raise DeliveryDelayed(f"the file cannot be read: {result.status}")
        if result.status != 200:
            raise DeliveryRefused(f"the file cannot be read: {result.status}")
        return result.body

    async def upload(self, url: str, content: bytes, *, seconds: float) -> None:
        """Put the bytes of a file where Slack asked for them; nobody sees it yet."""
        headers = {"content-type": "application/octet-stream"}
        try:
            result = await self._http.call(
                "POST", url, headers=headers, body=content, seconds=seconds
            )
        except HttpUnavailable as exc:
            raise DeliveryDelayed(f"upload: {exc.message}") from exc
        if result.status == 429:
            raise DeliveryDelayed("upload: ratelimited", _retry_after(result))
        if result.status >= 500:
            raise DeliveryDelayed(f"upload: {result.status}")
        if result.status != 200:
            raise DeliveryRefused(f"upload: {result.status}")


def _retry_after(result: HttpResult) -> float:
    try:
        return max(float(result.headers.get("retry-after", "1")), 0.0)
    except ValueError:
        return 1.0


def _raise(method: str, error: str, result: HttpResult) -> NoReturn:
    """Raise what an error of the Web API means."""
    text = f"{method}: {error or result.status}"
    if error in ("ratelimited", "rate_limited"):
        raise DeliveryDelayed(text, _retry_after(result))
    if error in _CREDENTIALS:
        raise DeliveryDelayed(text, CREDENTIAL_PAUSE_SECONDS)
    if error in _IMPOSSIBLE:
        raise DeliveryImpossible(text)
    if error in _GONE:
        raise MessageGone(text)
    if error in _AWAY or result.status >= 500:
        # Slack says itself that something may have been done before such an error.
        raise DeliveryDelayed(text, is_uncertain=True)
    raise DeliveryRefused(text, is_formatting=error in _FORMATTING)
