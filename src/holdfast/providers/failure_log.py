"""Failed upstream attempts: one log event for each, and the last one of each upstream."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.echo import strip_echo
from holdfast.core.healing.redaction import plain_code, redact
from holdfast.ports.provider import UpstreamFailure, UpstreamStatus
from holdfast.ports.request_context import current_request

MAX_REASON = 300


class CallRecord:
    """What this process has seen of the calls to one upstream."""

    __slots__ = ("answered", "failures", "last_failure")

    def __init__(self) -> None:
        self.answered: float | None = None
        """When the call began that was answered last, on the monotonic clock."""
        self.failures = 0
        """How many calls have failed since."""
        self.last_failure: UpstreamFailure | None = None

    def note_failure(self, failure: UpstreamFailure) -> None:
        """Note that a call has failed."""
        self.failures += 1
        self.last_failure = failure

    def status(self, name: str, kind: str, models: Sequence[str]) -> UpstreamStatus:
        """Return the state of an upstream."""
        answered = self.answered
        return UpstreamStatus(
            name=name,
            kind=kind,
            models=models,
            answered_at=time.time() - time.monotonic() + answered if answered else None,
            failures=self.failures,
            last_failure=self.last_failure,
        )


_log = logging.getLogger("holdfast.upstream")


def log_failure(
    upstream: str,
    failure: ProviderFailure,
    started_at: float,
    *,
    path: str | None = None,
    key: str | None = None,
    body: Sequence[bytes] = (),
) -> UpstreamFailure:
    """Log a failed attempt and return it; content of the request `body` is removed from it."""
    context = current_request.get()
    code = plain_code(failure.provider_code)
    reason = strip_echo(_shorten(redact(failure.message, key)), body)
    fields: dict[str, Any] = {
        "upstream": upstream,
        "path": path,
        "status": failure.provider_status,
        "failure": failure.failure_class,
        "code": redact(code, key) if code else None,
        "reason": reason,
        "ms": round((time.monotonic() - started_at) * 1000, 1),
        "model": context.model if context is not None else None,
        "session_id": context.session_id if context is not None else None,
        "turn_id": context.turn_id if context is not None else None,
        "request_id": context.request_id if context is not None else None,
    }
    present = {name: value for name, value in fields.items() if value}
    _log.warning("upstream.failed", extra=present)
    return UpstreamFailure(
        at=time.time(),
        failure_class=failure.failure_class,
        status=failure.provider_status,
        message=reason or "",
        session_id=fields["session_id"],
        turn_id=fields["turn_id"],
    )


def _shorten(message: str) -> str:
    """Return the beginning of a message, without a partial word, which could not be compared."""
    if len(message) <= MAX_REASON:
        return message
    return message[:MAX_REASON].rpartition(" ")[0]
