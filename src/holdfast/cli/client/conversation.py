"""One conversation with a gateway: a message is sent until it is answered, and answered once.

Every message has an idempotency key, so sending it again after a restart attaches to its turn.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

from holdfast.cli.client.gateway_client import GatewayClient, Refused, Unreachable, Value, path_of
from holdfast.cli.output.terminal import CommandFailed

STREAM_SECONDS = 3600.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0
TRY_AGAIN = frozenset({429, 502, 503, 504})
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How an answer ended."""

    session_id: str
    generation: str
    turn_id: str
    usage: Value | None = None
    error: str | None = None


class Broken:
    """What was said so far is void: the answer begins again."""


class _BrokenOff(CommandFailed):
    """A stream ended without its end."""


class Conversation:
    """Talks to one key."""

    def __init__(
        self,
        client: GatewayClient,
        key: str,
        model: str,
        *,
        patience_seconds: float,
        on_wait: Callable[[str], None],
    ) -> None:
        self._client = client
        self.key = key
        self.model = model
        self._patience = patience_seconds
        self._on_wait = on_wait
        self._turn_id: str | None = None

    def session(self) -> Value | None:
        """Return the live session, if there is one."""
        found = self._client.get("/v1/sessions", key=self.key)["data"]
        return found[0] if found else None

    def items(self) -> list[Value]:
        """Return what the model may be shown."""
        session = self.session()
        if session is None:
            return []
        return list(self._client.every(path_of("sessions", session["id"], "items")))

    def reset(self, reason: str) -> Value | None:
        """Begin the next generation, if anything was said in this one."""
        session = self.session()
        if session is None:
            return None
        path = path_of("sessions", session["id"], "reset")
        fresh: Value = self._client.post(path, {"reason": f"asked for with {reason}"})
        return fresh

    def cancel(self) -> None:
        """Stop the turn that is being answered."""
        if self._turn_id is not None:
            self._client.post(path_of("turns", self._turn_id, "cancel"))

    def ask(self, text: str) -> Iterator[str | Broken | Told]:
        """Yield an answer's pieces, then how it ended; wait for a gateway that goes away."""
        once = uuid.uuid4().hex
        until = time.monotonic() + self._patience
        pause, is_waiting, has_said = FIRST_PAUSE_SECONDS, False, False
        while True:
            try:
                for piece in self._try(text, once):
                    if is_waiting and has_said:
                        yield Broken()
                    is_waiting, has_said = False, True
                    yield piece
                return
            except (Unreachable, Refused, _BrokenOff) as exc:
                is_final = isinstance(exc, Refused) and exc.status not in TRY_AGAIN
                if is_final or time.monotonic() > until:
                    raise
                if not is_waiting:
                    self._on_wait(exc.message)
                is_waiting = True
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _try(self, text: str, once: str) -> Iterator[str | Told]:
        body = {"model": self.model, "input": text, "stream": True}
        headers = {"X-Session-Key": self.key, "Idempotency-Key": once}
        with self._client.request(
            "POST", "/v1/responses", body, headers, timeout=STREAM_SECONDS
        ) as reply:
            self._turn_id = reply.headers.get("x-turn-id")
            for event in _events(reply):
                kind = event.get("type")
                if kind == "response.output_text.delta":
                    yield str(event.get("delta", ""))
                elif kind in ENDS:
                    yield self._told(reply, event)
                    return
        raise _BrokenOff(f"the answer of {self._client.url} broke off")

    def _told(self, reply: HTTPResponse, event: Value) -> Told:
        response = event.get("response") or {}
        error: Any = response.get("error") or event.get("error")
        message = None
        if error or event.get("type") in ("error", "response.failed"):
            message = (error or event).get("message") or "the turn failed"
        elif event.get("type") == "response.incomplete":
            why = (response.get("incomplete_details") or {}).get("reason")
            message = f"the answer is incomplete: {why or 'no reason given'}"
        return Told(
            session_id=reply.headers.get("x-session-id", ""),
            generation=reply.headers.get("x-session-generation", ""),
            turn_id=reply.headers.get("x-turn-id", ""),
            usage=response.get("usage"),
            error=message,
        )


def _events(reply: HTTPResponse) -> Iterator[Value]:
    """Yield the events of a stream."""
    data: list[bytes] = []
    for line in reply:
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
