"""What happened to one call on its way to a server over HTTP, which decides what the model is told.

The client library reports with an error of its own that a connection failed, that an answer was
HTML, or that a stream ended. Such an error looks like one that the server has sent.
"""

import json
from contextvars import ContextVar
from typing import Any

import httpx2
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Failures before the first byte: refused, not resolved, no handshake, no free connection."""
_JSON, _STREAM = "application/json", "text/event-stream"
_MADE_BY_LIBRARY = frozenset({CONNECTION_CLOSED, PARSE_ERROR})
"""Codes with which the library reports a stream that broke or has no messages in it."""


class CallExchange:
    """One call: whether it was sent, and what its server answered."""

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why it was not sent."""
        self.status: int | None = None
        """The last HTTP status; None if there was no answer."""
        self._kind = ""
        self._has_error = False

    def is_answer(self, code: int) -> bool:
        """Whether the server itself has answered with a JSON-RPC error of this code."""
        if self._kind == _STREAM and self.status is not None and self.status < 400:
            return code not in _MADE_BY_LIBRARY  # the library reads the stream
        return self._has_error

    async def note_answer(self, response: httpx2.Response) -> None:
        """Note an answer; a JSON body is read, as the library would do next."""
        self.status, self._has_error = response.status_code, False
        self._kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._kind == _JSON:
            self._has_error = _is_error(await response.aread(), _read(response.request.content))


CURRENT_CALL: ContextVar[CallExchange | None] = ContextVar("mcp_call", default=None)
"""The call whose request is being sent; the library sends it in the context of its caller."""


class ObservedClient(httpx2.AsyncClient):
    """An HTTP client that notes what happens to the requests of a call."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        exchange = CURRENT_CALL.get()
        if exchange is None:
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
        except _NOT_SENT as exc:
            if exchange.status is None:
                exchange.failure = str(exc) or type(exc).__name__
            raise
        await exchange.note_answer(response)
        return response


def _is_error(body: bytes, request: Any) -> bool:
    """Whether a body is the error of a request: proxies send errors in JSON as well.

    An error without the request's id is about something else, such as a crash of the server.
    """
    value = _read(body)
    if not isinstance(value, dict) or not isinstance(request, dict):
        return False
    error = value.get("error")
    return (
        value.get("jsonrpc") == "2.0"
        and value.get("id") == request.get("id")
        and isinstance(error, dict)
        and type(error.get("code")) is int
        and isinstance(error.get("message"), str)
    )


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
