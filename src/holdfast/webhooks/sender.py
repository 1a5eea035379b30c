"""Post a fact to its server, and translate the reply into a delivery outcome."""

from collections.abc import Callable

from holdfast.core.model.delivery import OutboxRow
from holdfast.ports.channel import DeliveryDelayed, DeliveryImpossible, DeliveryRefused
from holdfast.ports.http_client import HttpCaller, HttpUnavailable
from holdfast.webhooks.settings import WebhookSettings
from holdfast.webhooks.signing import read_keys, signed_headers

CALL_SECONDS = 15.0
MAX_ANSWER_BYTES = 64 * 1024
"""Only the status of a reply is used."""
MAX_RETRY_AFTER_SECONDS = 3600.0


class WebhookSender:
    """Sends the rows of one webhook. Redirects are not followed."""

    def __init__(
        self, settings: WebhookSettings, http: HttpCaller, now: Callable[[], float]
    ) -> None:
        self._url = settings.url
        self._keys = read_keys(settings.secret)
        self._http = http
        self._now = now

    async def send(self, row: OutboxRow) -> str | None:
        """Post one fact; every attempt has the same id and its own timestamp."""
        body = row.text.encode()
        headers = {
            "content-type": "application/json",
            "user-agent": "holdfast-webhooks/1",
            **signed_headers(self._keys, row.id, int(self._now()), body),
        }
        try:
            result = await self._http.call(
                "POST", self._url, headers=headers, body=body, seconds=CALL_SECONDS,
                max_bytes=MAX_ANSWER_BYTES,
            )  # fmt: skip
        except HttpUnavailable as exc:
            raise DeliveryDelayed(exc.message, is_uncertain=exc.is_sent) from exc
        _judge(result.status, result.headers.get("retry-after", ""))
        return None


def _judge(status: int, retry_after: str) -> None:
    """Raise the delivery error for a status other than 2xx."""
    if 200 <= status < 300:
        return
    text = f"the server answered {status}"
    if status == 410:
        raise DeliveryImpossible(f"{text}: it wants no more facts")
    if status in (408, 429) or status >= 500:
        seconds = float(retry_after) if retry_after.isdecimal() else None
        if seconds is not None:
            seconds = min(seconds, MAX_RETRY_AFTER_SECONDS)
        raise DeliveryDelayed(text, seconds)
    raise DeliveryRefused(text)
