"""Web pages of other origins: refused by the browser unless the configuration names them."""

from collections.abc import Sequence

from holdfast.http.server.types import Header, Request

ALLOWED_METHODS = b"GET, POST, DELETE"
EXPOSED = (
    b"x-session-id, x-session-key, x-session-generation, x-turn-id, x-request-id, retry-after, "
    b"x-dropped-tools"
)


def is_preflight(request: Request) -> bool:
    """Whether a browser asks if it may ask."""
    return (
        request.method == "OPTIONS"
        and request.raw_header(b"access-control-request-method") is not None
    )


def cors_headers(request: Request, origins: Sequence[str]) -> list[Header]:
    """Return what lets a page of a named origin read the answer; nothing for any other."""
    origin = request.header(b"origin")
    if origin is None or (origin not in origins and "*" not in origins):
        return []
    headers: list[Header] = [
        (b"access-control-allow-origin", origin.encode()),
        (b"vary", b"origin"),
        (b"access-control-expose-headers", EXPOSED),
    ]
    if is_preflight(request):
        wanted = request.raw_header(b"access-control-request-headers") or b""
        headers.append((b"access-control-allow-methods", ALLOWED_METHODS))
        headers.append((b"access-control-allow-headers", wanted))
    return headers
