"""One log event for each failed upstream attempt: ids, status, code, and no content."""

import logging
import re
import time
from collections.abc import Sequence

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.echo import strip_echo
from holdfast.core.healing.redaction import redact
from holdfast.ports.request_context import current_request

MAX_REASON = 300
_log = logging.getLogger("holdfast.upstream")
_CODE = re.compile(r"[\w.:/-]{1,64}")
"""Other codes may hold anything."""


def log_failure(
    upstream: str,
    failure: ProviderFailure,
    started_at: float,
    *,
    path: str | None = None,
    key: str | None = None,
    body: Sequence[bytes] = (),
) -> None:
    """Log a failed attempt; `body` is the request, whose content is left out of the message."""
    context = current_request.get()
    code = failure.provider_code or ""
    reason = strip_echo(redact(failure.message, key)[:MAX_REASON], body)
    fields = {
        "upstream": upstream,
        "path": path,
        "status": failure.provider_status,
        "failure": failure.failure_class,
        "code": redact(code, key) if _CODE.fullmatch(code) else None,
        "reason": reason,
        "ms": round((time.monotonic() - started_at) * 1000, 1),
        "model": context.model if context is not None else None,
        "session_id": context.session_id if context is not None else None,
        "turn_id": context.turn_id if context is not None else None,
        "request_id": context.request_id if context is not None else None,
    }
    present = {name: value for name, value in fields.items() if value}
    _log.warning("upstream.failed", extra=present)
