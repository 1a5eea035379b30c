"""Serves the console's static files, with a policy that lets them load and run nothing else."""

from collections.abc import Callable, Mapping
from typing import Protocol

from holdfast.http.server.errors import error_reply
from holdfast.http.server.types import AnyReply, Header, Reply, Request

CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    b"require-trusted-types-for 'script'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=()"),
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
)


class ServedFile(Protocol):
    """A file to serve."""

    @property
    def content_type(self) -> str:
        """The value of Content-Type."""
        ...

    @property
    def body(self) -> bytes:
        """The content."""
        ...

    @property
    def compressed(self) -> bytes:
        """The content, compressed with gzip."""
        ...

    @property
    def etag(self) -> str:
        """The value of ETag."""
        ...


LoadFiles = Callable[[], Mapping[str, ServedFile]]
"""Returns the files by their path below `/console/`."""


class ConsoleApi:
    """Everything under /console; the files are loaded with the first request."""

    def __init__(self, load: LoadFiles) -> None:
        self._load = load
        self._files: Mapping[str, ServedFile] | None = None

    async def root(self, _: Request) -> AnyReply:
        """Lead a browser that opened the gateway's address to the console."""
        return Reply(b"", status=302, headers=[*HEADERS, (b"location", b"/console")])

    async def index(self, request: Request) -> AnyReply:
        """Return the page of the console."""
        return self._reply(request, "index.html")

    async def file(self, request: Request) -> AnyReply:
        """Return a file of the console."""
        return self._reply(request, "/".join(request.params.values()))

    def _reply(self, request: Request, name: str) -> Reply:
        if self._files is None:
            self._files = self._load()
        file = self._files.get(name)
        if file is None:
            return error_reply(404, f"no such path: {request.path}", code="unknown_url")
        headers = [*HEADERS, (b"etag", file.etag.encode())]
        if request.raw_header(b"if-none-match") == file.etag.encode():
            return Reply(b"", status=304, headers=headers)
        headers.append((b"content-type", file.content_type.encode()))
        body = file.body
        if b"gzip" in (request.raw_header(b"accept-encoding") or b""):
            headers.append((b"content-encoding", b"gzip"))
            body = file.compressed
        return Reply(body, headers=headers)
