"""What a client request is known by while it is served, for logs and for upstream requests.

The context variable is copied into every task that a request starts, so that a turn finds the
request that submitted it. Work that no request started, such as recovery, has no context.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class RequestContext:
    """One request: its ids, and where it was routed once that is known."""

    request_id: str
    traceparent: str | None = None
    model: str | None = None
    upstream: str | None = None

    def upstream_headers(self) -> dict[str, str]:
        """Return the headers that tie an upstream request to this one."""
        headers = {"x-request-id": self.request_id}
        if self.traceparent is not None:
            headers["traceparent"] = self.traceparent
        return headers


current_request: ContextVar[RequestContext | None] = ContextVar("holdfast_request", default=None)


def note_route(model: str, upstream: str) -> None:
    """Record which upstream serves the current request."""
    context = current_request.get()
    if context is not None:
        context.model, context.upstream = model, upstream
