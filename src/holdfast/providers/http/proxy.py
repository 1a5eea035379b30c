"""Forward proxies: requests through them, and TLS tunnels by CONNECT."""

import asyncio
import base64
import ssl
from typing import NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from holdfast.providers.errors import broken
from holdfast.providers.http.connection import UpstreamConnection

MAX_REPLY_BYTES = 16 * 1024
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """A forward proxy, as configured by `HTTPS_PROXY` and `HTTP_PROXY`."""

    host: str
    port: int
    is_tls: bool = False
    authorization: str | None = None
    """The value of `Proxy-Authorization`."""

    @classmethod
    def parse(cls, url: str) -> "Proxy":
        """Parse the URL of a proxy, such as `http://user:password@proxy:3128`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError("a proxy must be http://host:port or https://host:port")
        authorization = None
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        return cls(parts.hostname, port, parts.scheme == "https", authorization)

    @property
    def url(self) -> str:
        """The proxy as a URL with credentials, for clients of other libraries."""
        login = ""
        if self.authorization is not None:
            decoded = base64.b64decode(self.authorization.removeprefix("Basic ")).decode()
            login = f"{quote(decoded, safe=':')}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{login}{host}:{self.port}"


class _TunnelHandshake(asyncio.Protocol):
    """Reads a proxy's reply to CONNECT."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._received = b""
        self.reply: asyncio.Future[bytes] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received or len(self._received) > MAX_REPLY_BYTES:
            self._settle(self._received)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - see the reply
        self._settle(b"")

    def _settle(self, reply: bytes) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)


async def open_tunnel(
    loop: asyncio.AbstractEventLoop,
    proxy: Proxy,
    host: str,
    port: int,
    tls: ssl.SSLContext,
) -> UpstreamConnection:
    """Return a TLS connection to a server through a proxy; the proxy sees only host and port."""
    transport, handshake = await loop.create_connection(
        lambda: _TunnelHandshake(loop), proxy.host, proxy.port, ssl=tls if proxy.is_tls else None
    )
    try:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}"]
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
        transport.write("\r\n".join([*lines, "", ""]).encode())
        _check_reply(await handshake.reply, proxy)
        connection = UpstreamConnection(loop)
        secure = await loop.start_tls(transport, connection, tls, server_hostname=host)
        if secure is None:
            raise ConnectionResetError
        connection.connection_made(cast(asyncio.BaseTransport, secure))
    except BaseException:
        transport.abort()
        raise
    return connection


def _check_reply(reply: bytes, proxy: Proxy) -> None:
    head, end, rest = reply.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    is_valid = end and not rest and head.startswith(b"HTTP/1.") and status
    if not is_valid:
        raise broken(
            f"the proxy at {proxy.host}:{proxy.port} sent no valid reply to CONNECT",
            "upstream_proxy_failed",
        )
    if not (len(status[0]) == 3 and status[0].startswith(b"2")):
        text = status[0].decode("latin-1")
        raise broken(
            f"the proxy at {proxy.host}:{proxy.port} refused the connection with status {text}",
            "upstream_proxy_failed",
        )
