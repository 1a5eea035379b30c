"""One upstream: where it is, who we are to it, and how it is asked over the line."""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.redaction import redact
from holdfast.ports.request_context import current_request, note_first_token
from holdfast.providers.errors import broken, failure_of
from holdfast.providers.http.client import HttpAnswer, HttpClient, HttpRequest
from holdfast.providers.http.connection import Enough
from holdfast.providers.http.sse import EventTooLong, SseEvent, SseSplitter
from holdfast.providers.items.seal_owner import Maker, account_of
from holdfast.providers.settings import UpstreamSettings

DONE = b"[DONE]"
"""The mark behind the last event."""
MOST_MAKERS = 1024
MAX_LOGGED_MESSAGE = 500
_log = logging.getLogger("holdfast.upstream")


class Upstream:
    """The line to one OpenAI-compatible server. It alone knows the key."""

    def __init__(self, settings: UpstreamSettings, client: HttpClient) -> None:
        self.settings = settings
        self.name = settings.name
        self._client = client
        self._base = settings.url.rstrip("/")
        self._account = account_of(settings.url, settings.key)
        self._makers: dict[str, Maker] = {}
        self._headers = {"user-agent": "holdfast", "content-type": "application/json"}
        if settings.key:
            self._headers["authorization"] = f"Bearer {settings.key}"

    def maker(self, model: str) -> Maker:
        """Return who seals what comes from here."""
        if model not in self._makers:
            if len(self._makers) >= MOST_MAKERS:
                self._makers.clear()
            self._makers[model] = Maker(self.name, self._account, model)
        return self._makers[model]

    def hush(self, failure: ProviderFailure) -> ProviderFailure:
        """Return a failure whose words do not have our key in them."""
        key = self.settings.key
        failure.message = redact(failure.message, key)
        failure.args = (failure.message,)
        failure.provider_code = redact(failure.provider_code or "", key) or None
        failure.provider_type = redact(failure.provider_type or "", key) or None
        failure.param = redact(failure.param or "", key) or None
        return failure

    def request(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] | None = None,
        headers: dict[str, str] | None = None,
        *,
        may_repeat: bool = False,
    ) -> HttpRequest:
        """Return a request to this server, with our key and nobody else's."""
        return HttpRequest(
            method=method,
            url=f"{self._base}{path}",
            headers={**self._headers, **headers} if headers else self._headers,
            body=body,
            may_repeat=may_repeat,
        )

    @asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator[HttpAnswer]:
        """Send any request; the answer is given whatever it says."""
        async with self._client.exchange(request) as answer:
            yield answer

    @asynccontextmanager
    async def _logged(self, path: str) -> AsyncIterator[None]:
        """Log a failed attempt, with the provider's code and its message without our key."""
        began = time.monotonic()
        try:
            yield
        except ProviderFailure as failure:
            context = current_request.get()
            fields = {
                "upstream": self.name,
                "path": path,
                "status": failure.status,
                "failure": failure.failure_class,
                "code": redact(failure.provider_code or "", self.settings.key),
                "reason": redact(failure.message, self.settings.key)[:MAX_LOGGED_MESSAGE],
                "ms": round((time.monotonic() - began) * 1000, 1),
                "model": context.model if context is not None else None,
                "request_id": context.request_id if context is not None else None,
            }
            present = {name: value for name, value in fields.items() if value}
            _log.warning("upstream.failed", extra=present)
            raise

    async def ask(
        self,
        path: str,
        body: Sequence[bytes] | None = None,
        *,
        method: str = "POST",
        names_state: bool = False,
        may_repeat: bool = False,
    ) -> bytes:
        """Return the body of a good answer; a bad one is raised as what it means."""
        request = self.request(method, path, body, may_repeat=may_repeat)
        async with self._logged(path), self._client.exchange(request) as answer:
            content = await answer.read()
            if not 200 <= answer.status < 300:
                raise self.hush(
                    failure_of(answer.status, answer.headers, content, names_state=names_state)
                )
            return content

    async def follow(
        self,
        path: str,
        body: Sequence[bytes],
        follower: "Follower",
        *,
        names_state: bool = False,
        may_repeat: bool = False,
    ) -> None:
        """Have the events of a streamed answer followed, up to its end or the mark of it."""
        accepts = {"accept": "text/event-stream"}
        request = self.request("POST", path, body, accepts, may_repeat=may_repeat)
        async with self._logged(path), self._client.exchange(request) as answer:
            if not 200 <= answer.status < 300:
                content = await answer.read()
                raise failure_of(answer.status, answer.headers, content, names_state=names_state)
            kind = answer.headers.get("content-type", "")
            if "text/event-stream" not in kind:
                # Asked for a stream, the server gave a whole answer: it is the only event.
                with suppress(Enough):
                    follower.take([SseEvent("whole", await answer.read())])
                return
            await answer.pour(_Splitting(follower))


class Follower(Protocol):
    """Somebody who takes an answer's events as they come; see `Sink`."""

    def take(self, events: list[SseEvent]) -> bool:
        """Take the events that came together; return whether more may follow at once."""
        ...

    async def room(self) -> None:
        """Wait until more may follow."""
        ...


class _Splitting:
    """Takes a body for somebody who reads its events."""

    def __init__(self, follower: Follower) -> None:
        self._splitter = SseSplitter()
        self._follower = follower
        self._has_events = False
        self.room = follower.room

    def take(self, piece: bytes) -> bool:
        try:
            events = self._splitter.feed(piece)
        except EventTooLong as exc:
            raise broken(str(exc), "upstream_broken_answer") from exc
        if events and not self._has_events:
            self._has_events = True
            note_first_token()
        for place, event in enumerate(events):
            if event.data == DONE:
                self._follower.take(events[:place])
                raise Enough
        return self._follower.take(events) if events else True


def read_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object that an upstream sent."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise broken("the upstream's answer is no JSON", "upstream_broken_answer") from exc
    if not isinstance(value, dict):
        raise broken("the upstream's answer is no JSON object", "upstream_broken_answer")
    return value


async def list_models(upstream: Upstream) -> list[dict[str, Any]]:
    """Return the models that a server lists."""
    value = read_json(await upstream.ask("/models", method="GET"))
    listed = value.get("data")
    return [one for one in listed or () if isinstance(one, dict) and isinstance(one.get("id"), str)]
