"""A server that receives webhooks and verifies them by the Standard Webhooks specification."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.simulator.platforms.server import PlatformAnswer, PlatformCall
from holdfast.simulator.platforms.simulated_platform import WAIT_SECONDS, SimulatedPlatform

TOLERANCE_SECONDS = 300
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes, ok").decode()


@dataclass(frozen=True)
class WebhookAttempt:
    """One request that arrived, accepted or not."""

    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def id(self) -> str:
        """The id, which all attempts at the same fact share."""
        return self.headers.get("webhook-id", "")

    @property
    def payload(self) -> dict[str, Any]:
        """The fact."""
        value: dict[str, Any] = json.loads(self.body)
        return value


class WebhookReceiver(SimulatedPlatform):
    """Answers 204 to requests signed with its secret, and 401 to all others."""

    def __init__(self, secret: str = SECRET, port: int = 0) -> None:
        super().__init__(port)
        self.secret = secret
        self._key = base64.b64decode(secret.removeprefix("whsec_"))
        self._answers: list[tuple[int, dict[str, str]]] = []
        self.attempts: list[WebhookAttempt] = []

    @property
    def url(self) -> str:
        """The URL to post to."""
        return f"{self._server.url}/hooks"

    def answer_next(self, status: int, times: int = 1, **headers: str) -> None:
        """Answer the next requests with a status, whatever they contain."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with self._lock:
            self._answers += [(status, named)] * times

    @property
    def accepted(self) -> list[WebhookAttempt]:
        """The accepted facts, each once, in the order of arrival."""
        found: dict[str, WebhookAttempt] = {}
        for attempt in self.attempts:
            if attempt.status < 300:
                found.setdefault(attempt.id, attempt)
        return list(found.values())

    def _arrived(self) -> Sequence[object]:
        return [(attempt.status, attempt.payload["type"]) for attempt in self.attempts]

    def wait_for(self, count: int, seconds: float = WAIT_SECONDS) -> list[WebhookAttempt]:
        """Return the accepted facts once there are `count`."""
        self.wait(lambda: len(self.accepted) >= count, seconds)
        return self.accepted

    async def _handle(self, call: PlatformCall) -> PlatformAnswer:
        with self._lock:
            headers: dict[str, str] = {}
            if self._answers:
                status, headers = self._answers.pop(0)
            else:
                status = self._judge(call)
            self.attempts.append(WebhookAttempt(call.headers, call.body, status))
            self._lock.notify_all()
        return PlatformAnswer(b"", status=status, headers=headers)

    def _judge(self, call: PlatformCall) -> int:
        if (call.method, call.path) != ("POST", "/hooks"):
            return 404
        stamp = call.headers.get("webhook-timestamp", "")
        if not stamp.isdecimal() or abs(time.time() - int(stamp)) > TOLERANCE_SECONDS:
            return 401
        signed = f"{call.headers.get('webhook-id', '')}.{stamp}.".encode() + call.body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        expected = "v1," + base64.b64encode(digest).decode()
        signatures = call.headers.get("webhook-signature", "").split(" ")
        is_signed = any(hmac.compare_digest(signature, expected) for signature in signatures)
        return 204 if is_signed else 401
