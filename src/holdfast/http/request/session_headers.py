"""Which session a request speaks to, as its headers say."""

from collections.abc import Callable
from typing import Any, get_args
from urllib.parse import quote

import msgspec

from holdfast.core.errors import InvalidInput, InvalidSessionKey
from holdfast.core.ids import Key, SessionId, read_key
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy
from holdfast.http.server.types import Header, Request, header_text

OPENCLAW_REFUSED = ("subagent:", "cron:", "acp:")


MAX_DIGITS = 6
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
    if len(request.by_name) != len(request.headers):
        _refuse_doubled(request)
    sent = request.by_name
    said: dict[str, Any] = {}
    for name in sent:
        if name in _READERS:
            field, read = _READERS[name]
            said[field] = read(sent[name])
    if "openclaw" in said:
        if "key" in said:
            raise InvalidSessionKey("send X-Session-Key or x-openclaw-session-key, not both")
        said["key"] = _openclaw_key(said.pop("openclaw"))
    if "key" in said:
        if "session_id" in said:
            raise InvalidInput("send a session key or X-Session-Id, not both")
        said["key"] = read_key(said["key"])
    return SessionHeaders(**said)


def _refuse_doubled(request: Request) -> None:
    """Two headers that say two things leave nothing to go by."""
    for name in _SINGLE:
        if len(request.raw_headers(name)) > 1:
            raise InvalidInput(f"{name.decode()} was sent more than once")


def _key_text(raw: bytes) -> str:
    """Return a key's text; HTTP strips the blanks around it, and nobody folds the rest."""
    try:
        return raw.strip(b" \t").decode()
    except UnicodeDecodeError as exc:
        raise InvalidSessionKey("a session key must be UTF-8 text") from exc


def _openclaw_key(raw: str) -> str:
    """Name a session as the clients that made it do, so that imported ones are found."""
    if raw.startswith(OPENCLAW_REFUSED):
        raise InvalidSessionKey(f"a session key may not begin with {raw.split(':', 1)[0]}:")
    return raw if raw.startswith("agent:") or not raw else f"agent:main:{raw}"


def _idempotency_key(raw: bytes) -> str:
    text = header_text(raw)
    if not 1 <= len(text) <= 255:
        raise InvalidInput("an Idempotency-Key has 1 to 255 characters")
    return text


def _on_busy(given: bytes) -> OnBusy:
    raw = header_text(given)
    choices: tuple[Any, ...] = get_args(OnBusy)
    for choice in choices:
        if raw == choice:
            chosen: OnBusy = choice
            return chosen
    raise InvalidInput(f"X-On-Busy is one of {', '.join(choices)}, not {raw!r}")


def _flag(given: bytes) -> bool:
    raw = header_text(given)
    if raw.lower() in ("false", "0"):
        return False
    if raw.lower() in ("true", "1"):
        return True
    raise InvalidInput(f"X-Session-Internal is true or false, not {raw!r}")


def _count(raw: bytes) -> int:
    return int(raw) if raw.isdigit() and len(raw) <= MAX_DIGITS else 0


def _is_there(_: bytes) -> bool:
    return True


_READERS: dict[bytes, tuple[str, Callable[[bytes], Any]]] = {
    b"x-session-key": ("key", _key_text),
    b"x-openclaw-session-key": ("openclaw", _key_text),
    b"x-session-id": ("session_id", header_text),
    b"idempotency-key": ("idempotency_key", _idempotency_key),
    b"x-on-busy": ("on_busy", _on_busy),
    b"x-session-internal": ("is_internal", _flag),
    b"x-stainless-retry-count": ("retry_count", _count),
    # By these Codex is known: it sends everything it has, and less after it compacted that.
    b"x-codex-turn-metadata": ("sends_everything", _is_there),
    b"x-codex-window-id": ("sends_everything", _is_there),
}
"""For each header that says something of a session: what of it, and how it is read."""


def answer_headers(session: Session, turn_id: str | None = None) -> list[Header]:
    """Return what every session-bound answer carries."""
    headers = [
        (b"x-session-id", session.id.encode()),
        (b"x-session-generation", b"%d" % session.generation),
    ]
    if turn_id is not None:
        headers.append((b"x-turn-id", turn_id.encode()))
    key = session.key
    if key is not None:
        headers.append((b"x-session-key", key.encode() if key.isascii() else echo_key(key)))
    return headers


def echo_key(key: str) -> bytes:
    """Return a key as a header value: percent-encoded where it is not plain ASCII."""
    if key.isascii():
        return key.encode()
    return quote(key, safe=":/@!$&'()*+,;=?#[]~ ").encode()
