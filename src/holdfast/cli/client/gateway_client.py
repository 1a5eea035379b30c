"""HTTP client of the command line; every failure is one readable line."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from holdfast._version import __version__
from holdfast.cli.output.terminal import CommandFailed
from holdfast.settings.target import GatewayTarget

TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 100

Value = dict[str, Any]


class RequestRejected(CommandFailed):
    """The gateway answered with an error status; `code` is its error code."""

    def __init__(self, message: str, *, status: int, code: str | int | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class GatewayUnreachable(CommandFailed):
    """No connection, or the connection broke."""


class GatewayClient:
    """Requests to one gateway."""

    def __init__(self, target: GatewayTarget) -> None:
        self.url = target.url
        self._key = target.key
        self._parts = urlsplit(target.url)

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON reply to GET on a path."""
        parameters = {name: value for name, value in query.items() if value is not None}
        return self._request_json(
            "GET", f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path
        )

    def post(self, path: str, body: Value | None = None) -> Any:
        """Post to a path and return the JSON reply."""
        return self._request_json("POST", path, body or {})

    def delete(self, path: str) -> Any:
        """Send DELETE to a path and return the JSON reply."""
        return self._request_json("DELETE", path)

    def text(self, path: str) -> str:
        """Return the reply to GET on a path as text."""
        with self.request("GET", path) as response:
            return response.read().decode("utf-8", "replace")

    def list_all(self, path: str, *, limit: int = 0, **query: Any) -> Iterator[Value]:
        """Yield the entries of a list, page by page; a limit of 0 means all."""
        after, left = None, limit
        while True:
            size = min(PAGE_SIZE, left) if limit else PAGE_SIZE
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
        """Send a request; the block gets the open response of a successful one."""
        connection_class = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        connection = connection_class(self._parts.hostname or "", self._parts.port, timeout=timeout)
        try:
            sent = {"user-agent": f"holdfast-cli/{__version__}", **(headers or {})}
            if self._key is not None:
                sent["authorization"] = f"Bearer {self._key}"
            payload = None
            if body is not None:
                payload = json.dumps(body).encode()
                sent["content-type"] = "application/json"
            encoded = {name: _encode_header(name, text) for name, text in sent.items()}
            connection.request(method, self._parts.path + path, payload, encoded)
            response = connection.getresponse()
            if response.status >= 400:
                raise self._rejection(response)
            yield response
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(exc) from exc
        finally:
            connection.close()

    def _request_json(self, method: str, path: str, body: Value | None = None) -> Any:
        with self.request(method, path, body) as response:
            raw = response.read()
        try:
            return json.loads(raw)
        except ValueError as exc:
            raise CommandFailed(f"{self.url} does not answer like a Holdfast gateway") from exc

    def _rejection(self, response: http.client.HTTPResponse) -> CommandFailed:
        raw = response.read()
        try:
            error = json.loads(raw)["error"]
            message, code = str(error["message"]), error.get("code")
        except (ValueError, KeyError, TypeError):
            message, code = f"{self.url} answered {response.status} {response.reason}", None
        if response.status == 401:
            message += " (set HOLDFAST_API_KEY)"
        return RequestRejected(message, status=response.status, code=code)

    def _unreachable(self, exc: BaseException) -> GatewayUnreachable:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return GatewayUnreachable(
            f"no gateway at {self.url} ({reason}); start one with `holdfast serve`, or select one "
            "with --url or --config"
        )


def _encode_header(name: str, text: str) -> bytes:
    """Return a header value in UTF-8; reject control characters."""
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in text):
        raise CommandFailed(f"{name.lower()} must not contain control characters")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise CommandFailed(f"{name.lower()} must be valid Unicode text") from exc


def api_path(*parts: str) -> str:
    """Return a path below /v1 with every part quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
