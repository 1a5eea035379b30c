"""The context of a client request while it is served, for logs and upstream requests.

The context variable is copied into every task that a request starts, so that a turn finds the
request that submitted it. Channels, schedules and recovery start their own context.
"""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from holdfast.core.model.session import Usage


@dataclass(slots=True, eq=False, weakref_slot=True)
class RequestContext:
    """One request: its ids, and what is learned about its turn while it is served."""

    request_id: str
    traceparent: str | None = None
    tenant: str | None = None
    model: str | None = None
    upstream: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    usage: Usage | None = None
    """The tokens of the run's model calls, until its end counts them."""
    started_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None


current_request: ContextVar[RequestContext | None] = ContextVar("holdfast_request", default=None)


def begin_context(request_id: str, tenant: str) -> None:
    """Start the context of a turn that no HTTP request submitted.

    A turn of a WebSocket keeps the trace of its connection.
    """
    earlier = current_request.get()
    traceparent = earlier.traceparent if earlier is not None else None
    current_request.set(RequestContext(request_id, traceparent, tenant))


def note_model(model: str | None, upstream: str) -> None:
    """Record the model that the current request calls."""
    context = current_request.get()
    if context is not None:
        context.model, context.upstream = model, upstream


def note_first_token() -> None:
    """Record the time at which the upstream began to answer the current request."""
    context = current_request.get()
    if context is not None and context.first_token_at is None:
        context.first_token_at = time.monotonic()
