"""Which session a request speaks to, as its headers say."""

from typing import Any, get_args
from urllib.parse import quote

import msgspec

from holdfast.core.errors import InvalidInput, InvalidSessionKey
from holdfast.core.ids import Key, SessionId, read_key
from holdfast.core.session import Session
from holdfast.core.turn import OnBusy
from holdfast.ingress.http.asgi import Header, Request

OPENCLAW_REFUSED = ("subagent:", "cron:", "acp:")


MAX_DIGITS = 6
_WHOLE_HISTORY = (b"x-codex-turn-metadata", b"x-codex-window-id")
"""By these Codex is known: it sends everything it has, and less after it compacted that."""
_SINGLE = (
    b"x-session-key", b"x-openclaw-session-key", b"x-session-id", b"idempotency-key", b"x-on-busy",
    b"x-session-internal",
)  # fmt: skip


class SessionHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What the session headers of a request say."""

    key: Key | None = None
    session_id: SessionId | None = None
    idempotency_key: str | None = None
    on_busy: OnBusy | None = None
    is_internal: bool = False
    retry_count: int = 0
    sends_everything: bool = False
    """Whether the client is one that always sends its whole history, whatever is in it."""

    @property
    def is_bound(self) -> bool:
        """Whether the request names a session."""
        return self.key is not None or self.session_id is not None


def read_session_headers(request: Request) -> SessionHeaders:
    """Return what the headers say, or refuse what they cannot mean."""
    _refuse_doubled(request)
    key = _key_text(request.raw_header(b"x-session-key"))
    openclaw = _key_text(request.raw_header(b"x-openclaw-session-key"))
    if key is not None and openclaw is not None:
        raise InvalidSessionKey("send X-Session-Key or x-openclaw-session-key, not both")
    session_id = request.header(b"x-session-id")
    if session_id is not None and (key is not None or openclaw is not None):
        raise InvalidInput("send a session key or X-Session-Id, not both")
    if openclaw is not None:
        key = _openclaw_key(openclaw)
    return SessionHeaders(
        key=read_key(key) if key is not None else None,
        session_id=SessionId(session_id) if session_id is not None else None,
        idempotency_key=_idempotency_key(request.header(b"idempotency-key")),
        on_busy=_on_busy(request.header(b"x-on-busy")),
        is_internal=_flag(request.header(b"x-session-internal")),
        retry_count=_count(request.header(b"x-stainless-retry-count")),
        sends_everything=any(request.raw_header(name) is not None for name in _WHOLE_HISTORY),
    )


def _refuse_doubled(request: Request) -> None:
    """Two headers that say two things leave nothing to go by."""
    if not request.has_doubled_headers:
        return
    for name in _SINGLE:
        if len(request.raw_headers(name)) > 1:
            raise InvalidInput(f"{name.decode()} was sent more than once")


def _key_text(raw: bytes | None) -> str | None:
    """Return a key's text; HTTP strips the blanks around it, and nobody folds the rest."""
    if raw is None:
        return None
    try:
        return raw.strip(b" \t").decode()
    except UnicodeDecodeError as exc:
        raise InvalidSessionKey("a session key must be UTF-8 text") from exc


def _openclaw_key(raw: str) -> str:
    """Name a session as the clients that made it do, so that imported ones are found."""
    if raw.startswith(OPENCLAW_REFUSED):
        raise InvalidSessionKey(f"a session key may not begin with {raw.split(':', 1)[0]}:")
    return raw if raw.startswith("agent:") or not raw else f"agent:main:{raw}"


def _idempotency_key(raw: str | None) -> str | None:
    if raw is not None and not 1 <= len(raw) <= 255:
        raise InvalidInput("an Idempotency-Key has 1 to 255 characters")
    return raw


def _on_busy(raw: str | None) -> OnBusy | None:
    if raw is None:
        return None
    choices: tuple[Any, ...] = get_args(OnBusy)
    for choice in choices:
        if raw == choice:
            chosen: OnBusy = choice
            return chosen
    raise InvalidInput(f"X-On-Busy is one of {', '.join(choices)}, not {raw!r}")


def _flag(raw: str | None) -> bool:
    if raw is None or raw.lower() in ("false", "0"):
        return False
    if raw.lower() in ("true", "1"):
        return True
    raise InvalidInput(f"X-Session-Internal is true or false, not {raw!r}")


def _count(raw: str | None) -> int:
    is_number = raw is not None and raw.isascii() and raw.isdecimal() and len(raw) <= MAX_DIGITS
    return int(raw) if raw is not None and is_number else 0


def answer_headers(session: Session, turn_id: str | None = None) -> list[Header]:
    """Return what every session-bound answer carries."""
    headers = [
        (b"x-session-id", session.id.encode()),
        (b"x-session-generation", str(session.generation).encode()),
    ]
    if turn_id is not None:
        headers.append((b"x-turn-id", turn_id.encode()))
    if session.key is not None:
        headers.append((b"x-session-key", echo_key(session.key)))
    return headers


def echo_key(key: str) -> bytes:
    """Return a key as a header value: percent-encoded where it is not plain ASCII."""
    if key.isascii():
        return key.encode()
    return quote(key, safe=":/@!$&'()*+,;=?#[]~ ").encode()
