"""A gateway as the command line talks to it: plain HTTP, one line of error whatever goes wrong."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from holdfast._version import __version__
from holdfast.cli.output.terminal import CommandFailed
from holdfast.settings.target import Target

TIMEOUT_SECONDS = 30.0
PAGE = 100

Value = dict[str, Any]


class Refused(CommandFailed):
    """The gateway said no; `code` is its word for why."""

    def __init__(self, message: str, *, status: int, code: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Unreachable(CommandFailed):
    """Nobody answered, or what answered broke off."""


class GatewayClient:
    """Requests to one gateway."""

    def __init__(self, target: Target) -> None:
        self.url = target.url
        self._key = target.key
        self._parts = urlsplit(target.url)

    def get(self, path: str, **query: Any) -> Any:
        """Return what a path answers."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Value | None = None) -> Any:
        """Post to a path, and return its answer."""
        return self._ask("POST", path, body or {})

    def delete(self, path: str) -> Any:
        """Delete what a path names."""
        return self._ask("DELETE", path)

    def text(self, path: str) -> str:
        """Return an answer that is not JSON."""
        with self.request("GET", path) as reply:
            return self._read(reply).decode("utf-8", "replace")

    def every(self, path: str, *, limit: int = 0, **query: Any) -> Iterator[Value]:
        """Return the entries of a list, page after page; a limit of 0 means all."""
        after, left = None, limit
        while True:
            size = min(PAGE, left) if limit else PAGE
            page = self.get(path, limit=size, after=after, **query)
            yield from page["data"]
            left -= len(page["data"])
            after = page["last_id"]
            if not page["has_more"] or (limit and left <= 0):
                return

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        body: Value | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request; the block has the open answer, which is a good one."""
        connect = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        connection = connect(self._parts.hostname or "", self._parts.port, timeout=timeout)
        try:
            sent = {"user-agent": f"holdfast-cli/{__version__}", **(headers or {})}
            if self._key is not None:
                sent["authorization"] = f"Bearer {self._key}"
            payload = None
            if body is not None:
                payload = json.dumps(body).encode()
                sent["content-type"] = "application/json"
            written = {name: _header(name, text) for name, text in sent.items()}
            connection.request(method, self._parts.path + path, payload, written)
            reply = connection.getresponse()
            if reply.status >= 400:
                raise self._refusal(reply)
            yield reply
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(exc) from exc
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: Value | None = None) -> Any:
        with self.request(method, path, body) as reply:
            raw = self._read(reply)
        try:
            return json.loads(raw)
        except ValueError as exc:
            raise CommandFailed(f"{self.url} does not answer as a Holdfast gateway") from exc

    def _read(self, reply: http.client.HTTPResponse) -> bytes:
        return reply.read()

    def _refusal(self, reply: http.client.HTTPResponse) -> CommandFailed:
        raw = reply.read()
        try:
            error = json.loads(raw)["error"]
            message, code = str(error["message"]), error.get("code")
        except (ValueError, KeyError, TypeError):
            message, code = f"{self.url} answered {reply.status} {reply.reason}", None
        if reply.status == 401:
            message += " (set HOLDFAST_API_KEY)"
        return Refused(message, status=reply.status, code=code)

    def _unreachable(self, exc: BaseException) -> Unreachable:
        why = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return Unreachable(
            f"no gateway at {self.url} ({why}); start one with `holdfast serve`, or name one "
            "with --url"
        )


def _header(name: str, text: str) -> bytes:
    """Return a header's value as it is sent, in UTF-8; what no header can hold is refused."""
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in text):
        raise CommandFailed(f"{name.lower()} has no control characters")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise CommandFailed(f"{name.lower()} must be valid Unicode text") from exc


def path_of(*parts: str) -> str:
    """Return a path whose parts may hold anything."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
