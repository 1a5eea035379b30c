"""Access log and request ids: one event per request, with ids and without content."""

import logging
import re
from collections.abc import Callable, Sequence

from holdfast.engine.logging import log
from holdfast.http.server.types import AnyReply, Header, Reply, Request
from holdfast.ports.request_context import RequestContext, current_request

EVENT = "request.served"
WARNED_STATUSES = frozenset({401, 403, 429})
"""Client errors that an operator should see."""
MAX_MODEL_CHARACTERS = 128
_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_logger = log.logger(EVENT)


def begin_request(request: Request, new_id: Callable[[str], str]) -> RequestContext:
    """Give a request its id, the client's own if it is valid, and make it the current one."""
    given = request.by_name.get(b"x-request-id")
    is_valid = given is not None and _REQUEST_ID.fullmatch(given) is not None
    request.id = given.decode() if given is not None and is_valid else new_id("req")
    parent = request.by_name.get(b"traceparent")
    if parent is not None and _TRACEPARENT.fullmatch(parent) is None:
        parent = None
    context = RequestContext(request.id, parent.decode() if parent is not None else None)
    current_request.set(context)
    return context


def log_request(
    request: Request, reply: AnyReply, context: RequestContext, *, seconds: float, is_sent: bool
) -> None:
    """Log one request: at info, or at warning if an operator should see it."""
    status = reply.status
    level = logging.WARNING if status in WARNED_STATUSES or status >= 500 else logging.INFO
    if not _logger.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "request_id": request.id,
        "method": request.method,
        "route": request.route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "tenant": request.tenant if status != 401 else None,
        "session_id": _header(reply.headers, b"x-session-id"),
        "turn_id": _header(reply.headers, b"x-turn-id"),
        "model": context.model[:MAX_MODEL_CHARACTERS] if context.model else None,
        "upstream": context.upstream,
        "bytes_in": request.received_bytes,
        "bytes_out": len(reply.body) if isinstance(reply, Reply) else request.sent_bytes,
    }
    if not is_sent:
        fields["client"] = "left"
    present = {name: value for name, value in fields.items() if value is not None}
    _logger.log(level, EVENT, extra=present)


def _header(headers: Sequence[Header], name: bytes) -> str | None:
    value = next((value for key, value in headers if key == name), None)
    return value.decode("latin-1") if value is not None else None
