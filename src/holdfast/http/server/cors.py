"""Cross-origin requests: browsers may read replies only from configured origins."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.core.decisions.api_keys import NotAllowed
from holdfast.http.server.types import Header, Request

ALLOWED_METHODS = b"GET, POST, DELETE"
EXPOSED = (
    b"x-session-id, x-session-key, x-session-generation, x-turn-id, x-request-id, retry-after, "
    b"x-dropped-tools, x-open-calls"
)


class ForeignOrigin(NotAllowed):
    """A page of another site sent the request; browsers do not prevent that, so the server does."""

    code = "origin_not_allowed"


def check_origin(request: Request, allowed: Sequence[str]) -> None:
    """Reject pages of other sites.

    The same-origin policy covers neither WebSocket handshakes nor simple POST requests: the
    browser only hides the reply from the page.
    """
    origin = request.header(b"origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc.lower() != (request.header(b"host") or "").lower():
        raise ForeignOrigin(f"the origin {origin[:128]!r} is not allowed; see server.cors_origins")


def is_preflight(request: Request) -> bool:
    """Return whether this is a browser's CORS preflight request."""
    return (
        request.method == "OPTIONS"
        and request.raw_header(b"access-control-request-method") is not None
    )


def cors_headers(request: Request, origins: Sequence[str]) -> list[Header]:
    """Return the headers that let an allowed origin read the reply; none for other origins."""
    origin = request.header(b"origin")
    if origin is None or (origin not in origins and "*" not in origins):
        return []
    headers: list[Header] = [
        (b"access-control-allow-origin", origin.encode()),
        (b"vary", b"origin"),
        (b"access-control-expose-headers", EXPOSED),
    ]
    if is_preflight(request):
        requested = request.raw_header(b"access-control-request-headers") or b""
        headers.append((b"access-control-allow-methods", ALLOWED_METHODS))
        headers.append((b"access-control-allow-headers", requested))
    return headers
