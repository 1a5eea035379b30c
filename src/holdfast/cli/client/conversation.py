"""A chat conversation with a gateway: each message is retried until it has its one answer.

Every message has an idempotency key, so a retry after a restart attaches to the same turn.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from holdfast.cli.client.gateway_client import (
    GatewayClient,
    GatewayUnreachable,
    RequestRejected,
    Value,
    api_path,
)
from holdfast.cli.output.terminal import CommandFailed

STREAM_SECONDS = 3600.0
FIRST_RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 2.0
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
TERMINAL_EVENTS = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "error"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """How an answer ended."""

    session_id: str
    generation: str
    turn_id: str
    usage: Value | None = None
    error: str | None = None


class AnswerRestarted:
    """The answer starts again; everything received so far is void."""


class StreamInterrupted(CommandFailed):
    """A stream ended without a terminal event."""


class ChatConversation:
    """The conversation under one key."""

    def __init__(
        self,
        client: GatewayClient,
        key: str,
        model: str,
        *,
        retry_seconds: float,
        on_wait: Callable[[str], None],
    ) -> None:
        self._client = client
        self.key = key
        self.model = model
        self._retry_seconds = retry_seconds
        self._on_wait = on_wait
        self._turn_id: str | None = None

    def session(self) -> Value | None:
        """Return the live session, if there is one."""
        sessions = self._client.get("/v1/sessions", key=self.key)["data"]
        return sessions[0] if sessions else None

    def items(self) -> list[Value]:
        """Return the visible items."""
        session = self.session()
        if session is None:
            return []
        return list(self._client.list_all(api_path("sessions", session["id"], "items")))

    def reset(self, reason: str) -> Value | None:
        """Start the next generation, if the key has a session."""
        session = self.session()
        if session is None:
            return None
        path = api_path("sessions", session["id"], "reset")
        new_session: Value = self._client.post(path, {"reason": f"requested with {reason}"})
        return new_session

    def cancel(self) -> None:
        """Cancel the running turn."""
        if self._turn_id is not None:
            self._client.post(api_path("turns", self._turn_id, "cancel"))

    def send(self, text: str) -> Iterator[str | AnswerRestarted | AnswerEnd]:
        """Send a message; yield the answer's pieces, then its end. Retry while unreachable."""
        idempotency_key = uuid.uuid4().hex
        deadline = time.monotonic() + self._retry_seconds
        pause, is_waiting, has_output = FIRST_RETRY_SECONDS, False, False
        while True:
            try:
                for piece in self._attempt(text, idempotency_key):
                    if is_waiting and has_output:
                        yield AnswerRestarted()
                    is_waiting, has_output = False, True
                    yield piece
                return
            except (GatewayUnreachable, RequestRejected, StreamInterrupted) as exc:
                is_final = isinstance(exc, RequestRejected) and exc.status not in RETRYABLE_STATUSES
                if is_final or time.monotonic() > deadline:
                    raise
                if not is_waiting:
                    self._on_wait(exc.message)
                is_waiting = True
            time.sleep(pause)
            pause = min(pause * 2, MAX_RETRY_SECONDS)

    def _attempt(self, text: str, idempotency_key: str) -> Iterator[str | AnswerEnd]:
        body = {"model": self.model, "input": text, "stream": True}
        headers = {"X-Session-Key": self.key, "Idempotency-Key": idempotency_key}
        with self._client.request(
            "POST", "/v1/responses", body, headers, timeout=STREAM_SECONDS
        ) as response:
            self._turn_id = response.headers.get("x-turn-id")
            for event in _events(response):
                kind = event.get("type")
                if kind == "response.output_text.delta":
                    yield str(event.get("delta", ""))
                elif kind in TERMINAL_EVENTS:
                    yield self._end(response, event)
                    return
        raise StreamInterrupted(f"the answer of {self._client.url} was interrupted")

    def _end(self, response: HTTPResponse, event: Value) -> AnswerEnd:
        result = event.get("response") or {}
        error: Any = result.get("error") or event.get("error")
        message = None
        if error or event.get("type") in ("error", "response.failed"):
            message = (error or event).get("message") or "the turn failed"
        elif event.get("type") == "response.incomplete":
            reason = (result.get("incomplete_details") or {}).get("reason")
            message = f"the answer is incomplete: {reason or 'no reason given'}"
        return AnswerEnd(
            session_id=response.headers.get("x-session-id", ""),
            generation=response.headers.get("x-session-generation", ""),
            turn_id=response.headers.get("x-turn-id", ""),
            usage=result.get("usage"),
            error=message,
        )


def _events(response: HTTPResponse) -> Iterator[Value]:
    """Yield the server-sent events of a stream."""
    data: list[bytes] = []
    for line in response:
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            data.append(text[5:].lstrip())
        elif not text and data:
            raw, data = b"\n".join(data), []
            if raw == b"[DONE]":
                return
            try:
                event = json.loads(raw)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
