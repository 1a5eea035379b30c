"""Calls of Slack's Web API; each failure says whether it is about the message itself."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast.channels.platform_calls import UPLOAD_SECONDS, download_file, post, read_reply
from holdfast.ports.channel import (
    DeliveryDelayed,
    DeliveryImpossible,
    DeliveryRefused,
    MessageGone,
)
from holdfast.ports.http_client import HttpCaller, HttpResult

CREDENTIAL_PAUSE_SECONDS = 30.0
MISSING_SCOPE = "missing_scope"
_CREDENTIALS = frozenset(
    {
        "account_inactive", "invalid_auth", MISSING_SCOPE, "no_permission",
        "not_allowed_token_type", "not_authed", "team_access_not_granted", "token_expired",
        "token_revoked",
    }
)  # fmt: skip
"""Account errors: all messages wait until the operator has fixed the account."""
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
_OUTAGES = frozenset(
    {"fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"}
)
_FORMATTING = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_too_long", "no_text"})
"""Errors about a rendered text; its source can still be sent unrendered."""

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
        """Call a method and return its decoded reply.

        Arguments are form fields, which every method accepts; structured values are JSON.
        """
        fields = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in arguments.items()
        }
        result = await post(
            self._http,
            method,
            f"{self.base_url}/{method}",
            headers={
                "authorization": f"Bearer {token or self._token}",
                "content-type": "application/x-www-form-urlencoded; charset=utf-8",
            },
            body=urlencode(fields).encode(),
            may_repeat=is_read,
        )
        if result.status == 429:
            raise DeliveryDelayed(f"{method}: ratelimited", _retry_after(result))
        reply = read_reply(method, result, _Reply)
        if not reply.ok:
            _raise(method, reply.error, result)
        return read_reply(method, result, answer)

    async def download(self, url: str, max_bytes: int) -> bytes:
        """Return a file from Slack's own hosts, which require the token."""
        headers = {"authorization": f"Bearer {self._token}"}
        return await download_file(self._http, url, max_bytes, headers=headers)

    async def upload(self, url: str, content: bytes) -> None:
        """Upload the bytes of a file to the given URL; the file is not visible yet."""
        headers = {"content-type": "application/octet-stream"}
        result = await post(
            self._http, "upload", url, headers=headers, body=content, seconds=UPLOAD_SECONDS,
            may_repeat=True,
        )  # fmt: skip
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
    """Raise the delivery error for an error code of the Web API."""
    text = f"{method}: {error or result.status}"
    if error in ("ratelimited", "rate_limited"):
        raise DeliveryDelayed(text, _retry_after(result))
    if error in _CREDENTIALS:
        raise DeliveryDelayed(text, CREDENTIAL_PAUSE_SECONDS)
    if error in _IMPOSSIBLE:
        raise DeliveryImpossible(text)
    if error in _GONE:
        raise MessageGone(text)
    if error in _OUTAGES or result.status >= 500:
        # According to Slack, something may have been done before such an error.
        raise DeliveryDelayed(text, is_uncertain=True)
    raise DeliveryRefused(text, is_formatting=error in _FORMATTING)
