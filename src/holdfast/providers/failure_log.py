"""One log event for each failed upstream attempt: ids, status, code, and no content."""

import logging
import time
from collections.abc import Sequence

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.echo import strip_echo
from holdfast.core.healing.redaction import plain_code, redact
from holdfast.ports.request_context import current_request

MAX_REASON = 300
_log = logging.getLogger("holdfast.upstream")


def log_failure(
    upstream: str,
    failure: ProviderFailure,
    started_at: float,
    *,
    path: str | None = None,
    key: str | None = None,
    body: Sequence[bytes] = (),
) -> None:
    """Log a failed attempt; content of the request `body` is removed from the message."""
    context = current_request.get()
    code = plain_code(failure.provider_code)
    reason = strip_echo(_shorten(redact(failure.message, key)), body)
    fields = {
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


def _shorten(message: str) -> str:
    """Return the beginning of a message, without a partial word, which could not be compared."""
    if len(message) <= MAX_REASON:
        return message
    return message[:MAX_REASON].rpartition(" ")[0]
