"""Session headers: parse those of requests, write those of replies."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, get_args
from urllib.parse import quote

import msgspec

from holdfast.core.errors import InvalidInput, InvalidSessionKey, SessionChanged
from holdfast.core.ids import Key, SessionId, read_key, session_of_name
from holdfast.core.model.schedule import RESERVED_PREFIX
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy, Source
from holdfast.http.server.types import Header, Request, header_text

OPENCLAW_RESERVED = ("subagent:", "cron:", "acp:")


CACHED_KEYS = 4096
MAX_DIGITS = 6
OPEN_CALLS = b"x-open-calls"
MAX_OPEN_CALLS = 16
MAX_CALL_NAME = 64
MAX_ID = 255
_NOT_TEXT = "a session key must be UTF-8 text"
_SINGLE = (
    b"x-session-key", b"x-openclaw-session-key", b"x-session-id", b"idempotency-key", b"x-on-busy",
    b"x-session-internal", b"x-session-source", b"x-expected-session-id", b"x-session-history",
)  # fmt: skip


HistoryMode = Literal["auto", "whole", "new"]


class SessionHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed session headers of a request."""

    key: Key | None = None
    session_id: SessionId | None = None
    expected_id: SessionId | None = None
    """The session that the caller believes to be live."""
    idempotency_key: str | None = None
    on_busy: OnBusy | None = None
    is_internal: bool = False
    background_source: Source = "background"
    """The source of a background turn: a person in the console, or a program.

    That is no privilege: whoever may send it may also send a turn of a user.
    """
    retry_count: int = 0
    sends_everything: bool = False
    """Whether the client always sends its whole history (Codex)."""
    history: HistoryMode = "auto"
    """What the request contains: the whole history, only new items, or either."""

    with_trace: bool = False
    """Whether a Chat completion lists the calls of the gateway's tools."""

    @property
    def is_whole(self) -> bool:
        """Whether the request contains the whole history, even if it has no answer in it."""
        return self.history == "whole" or (self.sends_everything and self.history == "auto")

    @property
    def is_bound(self) -> bool:
        """Whether the headers name a session."""
        return self.key is not None or self.session_id is not None


def read_session_headers(request: Request) -> SessionHeaders:
    """Return the parsed session headers; reject invalid or contradictory ones."""
    if len(request.by_name) != len(request.headers):
        _reject_duplicates(request)
    headers = request.by_name
    values: dict[str, Any] = {}
    for name in headers:
        if name in _PARSERS:
            field, parse = _PARSERS[name]
            values[field] = parse(headers[name])
    if "openclaw" in values:
        if "key" in values:
            raise InvalidSessionKey("send X-Session-Key or x-openclaw-session-key, not both")
        values["key"] = _openclaw_key(values.pop("openclaw"))
    if "key" in values:
        if "session_id" in values:
            raise InvalidInput("send a session key or X-Session-Id, not both")
        values["key"] = _session_key(values["key"].strip(b" \t"))
    return SessionHeaders(**values)


def _reject_duplicates(request: Request) -> None:
    """Reject a session header that was sent more than once."""
    for name in _SINGLE:
        if len(request.raw_headers(name)) > 1:
            raise InvalidInput(f"{name.decode()} was sent more than once")


@lru_cache(maxsize=CACHED_KEYS)
def _session_key(raw: bytes) -> Key:
    """Return the key in a header without outer blanks; valid keys, which are short, are cached."""
    try:
        key = read_key(raw.decode())
    except UnicodeDecodeError as exc:
        raise InvalidSessionKey(_NOT_TEXT) from exc
    if key.startswith(RESERVED_PREFIX):
        raise InvalidSessionKey(f"a session key must not start with {RESERVED_PREFIX}")
    return key


def _openclaw_key(raw: bytes) -> bytes:
    """Return the key under which OpenClaw's sessions are imported."""
    key = _key_text(raw.strip(b" \t"))
    if key.startswith(OPENCLAW_RESERVED):
        raise InvalidSessionKey(f"a session key must not start with {key.split(':', 1)[0]}:")
    return key.encode() if key.startswith("agent:") or not key else f"agent:main:{key}".encode()


def _key_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise InvalidSessionKey(_NOT_TEXT) from exc


def _session_id(raw: bytes) -> SessionId:
    return session_of_name(header_text(raw))


def _expected_id(raw: bytes) -> SessionId:
    text = header_text(raw)
    if not text or "\0" in text or len(text) > MAX_ID:
        raise InvalidInput("X-Expected-Session-Id must be a session id")
    return session_of_name(text)


def _idempotency_key(raw: bytes) -> str:
    text = header_text(raw)
    if not 1 <= len(text) <= 255:
        raise InvalidInput("an Idempotency-Key has 1 to 255 characters")
    return text


def _on_busy(value: bytes) -> OnBusy:
    chosen: OnBusy = _choice("X-On-Busy", value, get_args(OnBusy))
    return chosen


def _history(value: bytes) -> HistoryMode:
    chosen: HistoryMode = _choice("X-Session-History", value, get_args(HistoryMode))
    return chosen


def _choice(header: str, value: bytes, choices: tuple[Any, ...]) -> Any:
    text = header_text(value)
    if text not in choices:
        raise InvalidInput(f"{header} must be one of {', '.join(choices)}, not {text!r}")
    return text


def _source(value: bytes) -> Source:
    chosen: Source = _choice("X-Session-Source", value, ("console",))
    return chosen


def _flag(header: str, value: bytes) -> bool:
    raw = header_text(value)
    if raw.lower() in ("false", "0"):
        return False
    if raw.lower() in ("true", "1"):
        return True
    raise InvalidInput(f"{header} must be true or false, not {raw!r}")


def _count(raw: bytes) -> int:
    return int(raw) if raw.isdigit() and len(raw) <= MAX_DIGITS else 0


def _is_present(_: bytes) -> bool:
    return True


_PARSERS: dict[bytes, tuple[str, Callable[[bytes], Any]]] = {
    b"x-session-key": ("key", bytes),
    b"x-openclaw-session-key": ("openclaw", bytes),
    b"x-session-id": ("session_id", _session_id),
    b"x-expected-session-id": ("expected_id", _expected_id),
    b"idempotency-key": ("idempotency_key", _idempotency_key),
    b"x-on-busy": ("on_busy", _on_busy),
    b"x-session-internal": ("is_internal", partial(_flag, "X-Session-Internal")),
    b"x-session-source": ("background_source", _source),
    b"x-session-history": ("history", _history),
    b"x-tool-trace": ("with_trace", partial(_flag, "X-Tool-Trace")),
    b"x-stainless-retry-count": ("retry_count", _count),
    # Codex sends its whole history, which is shorter after Codex has compacted it.
    b"x-codex-turn-metadata": ("sends_everything", _is_present),
    b"x-codex-window-id": ("sends_everything", _is_present),
}
"""Field and parser for each session header."""


def check_expectable(headers: SessionHeaders) -> None:
    """Reject an expected session on a request that does not go to a live session."""
    if headers.expected_id is not None:
        raise InvalidInput("X-Expected-Session-Id needs a request that goes to a live session")


def check_session(headers: SessionHeaders, session: Session) -> None:
    """Reject headers that expect another session than the path names.

    A key is ignored: many clients send theirs with every request.
    """
    if headers.expected_id not in (None, session.id):
        raise SessionChanged(str(headers.expected_id), session.id)


def answer_headers(
    session: Session, turn_id: str | None = None, open_calls: Sequence[str] = ()
) -> list[Header]:
    """Return the headers of every session-bound reply.

    `open_calls` are tool calls without output, which the request waits for or lacks; at most
    `MAX_OPEN_CALLS` are named.
    """
    headers = [
        (b"x-session-id", session.id.encode()),
        (b"x-session-generation", b"%d" % session.generation),
    ]
    if turn_id is not None:
        headers.append((b"x-turn-id", turn_id.encode()))
    key = session.key
    if key is not None:
        headers.append((b"x-session-key", key.encode() if key.isascii() else echo_key(key)))
    if open_calls:
        headers.append((OPEN_CALLS, b", ".join(map(_call_name, open_calls[:MAX_OPEN_CALLS]))))
    return headers


def _call_name(call_id: str) -> bytes:
    return quote(call_id[:MAX_CALL_NAME], safe=":/|+=@").encode()


def name_session(request: Request, session: Session, turn_id: str | None = None) -> None:
    """Name a session, and a turn of it, in the answer to a request that is not a turn."""
    request.answer_headers = answer_headers(session, turn_id)


def echo_key(key: str) -> bytes:
    """Return a key as a header value, percent-encoded if it is not ASCII."""
    if key.isascii():
        return key.encode()
    return quote(key, safe=":/@!$&'()*+,;=?#[]~ ").encode()
