"""Access log and request ids: one event per request, with ids and without content."""

import logging
import re
import time
from collections.abc import Callable, Sequence

from holdfast.engine.logging import log
from holdfast.http.server.types import AnyReply, Header, Reply, Request
from holdfast.http.server.websocket import WebSocket
from holdfast.ports.request_context import RequestContext, current_request

EVENT = "request.served"
WARNED_STATUSES = frozenset({401, 403, 429})
"""Client errors that an operator should see."""
NORMAL_OUTCOMES = frozenset({"completed", "incomplete", "cancelled", "rejected", "abandoned"})
"""Outcomes of requests over WebSocket that no operator needs to see."""
MAX_MODEL_CHARACTERS = 128
_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
"""A valid parent: version ff and ids that are all zero are invalid."""
_PATH_ID = re.compile(r"(ses|conv|turn)_([0-9A-Za-z]{1,64})")
"""A Holdfast id in a path; anything else that a client writes there is not logged."""
access_logger = log.logger(EVENT)
"""The logger of requests; nothing is prepared for it while its level is off."""
STORE_UNAVAILABLE = b'"code":"store_unavailable"'
"""In the body of an error."""


def begin_request(request: Request, new_id: Callable[[str], str]) -> RequestContext:
    """Give a request its id, the client's own if it is valid, and make it the current one."""
    client_id = request.by_name.get(b"x-request-id")
    is_valid = client_id is not None and _REQUEST_ID.fullmatch(client_id) is not None
    request.id = client_id.decode() if client_id is not None and is_valid else new_id("req")
    parent = request.by_name.get(b"traceparent")
    if parent is not None and _TRACEPARENT.fullmatch(parent) is None:
        parent = None
    context = RequestContext(request.id, parent.decode() if parent is not None else None)
    current_request.set(context)
    return context


def is_warned(status: int) -> bool:
    """Return whether an operator should see a status."""
    return status in WARNED_STATUSES or status >= 500


def log_request(
    request: Request, reply: AnyReply, context: RequestContext, *, seconds: float, is_sent: bool
) -> None:
    """Log one request: at info, or at warning if an operator should see it."""
    status = reply.status
    is_seen = is_warned(status) and not _is_of_outage(reply)
    level = logging.WARNING if is_seen else logging.INFO
    if not access_logger.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "request_id": request.id,
        "method": request.method,
        "route": request.route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "tenant": request.tenant if status != 401 else None,
        # The answer to a reset names the new session: log the session that was reset.
        "session_id": _session_in_path(request) or _header(reply.headers, b"x-session-id"),
        "turn_id": _header(reply.headers, b"x-turn-id") or _turn_in_path(request),
        "model": context.model[:MAX_MODEL_CHARACTERS] if context.model else None,
        "upstream": context.upstream,
        "bytes_in": request.received_bytes,
        "bytes_out": len(reply.body) if isinstance(reply, Reply) else request.sent_bytes,
    }
    if not is_sent:
        fields["client"] = "left"
    present = {name: value for name, value in fields.items() if value is not None}
    access_logger.log(level, EVENT, extra=present)


def _is_of_outage(reply: AnyReply) -> bool:
    """Whether the store could not be used: one event for all requests, and logged as one."""
    return reply.status == 503 and isinstance(reply, Reply) and STORE_UNAVAILABLE in reply.body


def log_websocket_opened(request: Request) -> None:
    """Log a WebSocket connection that was accepted."""
    fields = {"request_id": request.id, "route": request.route, "tenant": request.tenant}
    log.info("request.websocket_opened", **fields)


def log_websocket_closed(request: Request, websocket: WebSocket, *, turns: int) -> None:
    """Log the end of a WebSocket connection, with its counts of requests and bytes."""
    log.info(
        "request.websocket_closed",
        request_id=request.id,
        route=request.route,
        tenant=request.tenant,
        ms=round((time.monotonic() - request.started_at) * 1000, 1),
        code=websocket.close_code,
        turns=turns,
        bytes_in=websocket.received_bytes,
        bytes_out=websocket.sent_bytes,
    )


def log_websocket_answer(request: Request, outcome: str, *, bytes_in: int) -> None:
    """Log one request of a WebSocket: at warning if an operator should see it."""
    level = logging.INFO if outcome in NORMAL_OUTCOMES else logging.WARNING
    context = current_request.get()
    if context is None or not access_logger.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "request_id": request.id,
        "route": request.route,
        "outcome": outcome,
        "ms": round((time.monotonic() - context.started_at) * 1000, 1),
        "tenant": context.tenant,
        "session_id": context.session_id,
        "turn_id": context.turn_id,
        "model": context.model[:MAX_MODEL_CHARACTERS] if context.model else None,
        "upstream": context.upstream,
        "bytes_in": bytes_in,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    access_logger.log(level, "request.websocket_answered", extra=present)


def _session_in_path(request: Request) -> str | None:
    """Return the session that the path names, also as a conversation."""
    named = _PATH_ID.fullmatch(request.params.get("id", ""))
    return f"ses_{named[2]}" if named is not None and named[1] != "turn" else None


def _turn_in_path(request: Request) -> str | None:
    """Return the turn that the path names."""
    named = _PATH_ID.fullmatch(request.params.get("id", ""))
    return named[0] if named is not None and named[1] == "turn" else None


def _header(headers: Sequence[Header], name: bytes) -> str | None:
    value = next((value for key, value in headers if key == name), None)
    return value.decode("latin-1") if value is not None else None
