"""Find out which of OpenAI's two APIs a server speaks, without spending tokens.

Each path is sent an empty object, which no model can answer. What the reply says about the path is
decided by a pure function; where that is not enough, by comparing it with the reply of a path that
no server has.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.redaction import redact
from holdfast.providers.errors import has_error, redirect_target
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.upstream import Upstream

RESPONSES_PATH = "/responses"
CHAT_PATH = "/chat/completions"
NO_PATH = "/holdfast-no-such-path"
"""A path that no server has; its reply shows how a server answers for what it does not have."""
PROBE_SECONDS = 5.0
"""How long the reply to one probe may take."""
MAX_REPLY_BYTES = 64 * 1024
Presence = Literal["present", "absent", "unknown"]
Verdict = Literal["present", "absent", "unknown", "unclear"]
_UNKNOWN_STATUSES = frozenset({401, 403, 407, 408, 421, 425, 429})
"""Given by what stands in front of the paths: about the key, the rate or the connection."""
_SCORES: Mapping[Presence, int] = {"present": 3, "unknown": 1, "absent": 0}


class FoundApis(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has under a base URL."""

    base: str
    responses: Presence
    chat: Presence
    reason: str = ""
    """Why it is not known what the server has, or what is wrong with its address."""
    has_hung: bool = False
    """Whether a path did not answer in time."""

    @property
    def is_known(self) -> bool:
        """Whether there is an API that the server is known, or alone can be expected, to have."""
        presences = (self.responses, self.chat)
        return "present" in presences or set(presences) == {"absent", "unknown"}

    @property
    def score(self) -> int:
        """How good a base URL is, compared with another one of the server."""
        return _SCORES[self.responses] + _SCORES[self.chat]

    def describe(self, configured: str) -> str:
        """Return one line for the operator."""
        at = _shown(self.base)
        if at != _shown(configured):
            at += f" (not at {_shown(configured)}, as `url` says)"
        if self.responses == self.chat == "present":
            return f"speaks Responses and Chat Completions at {at}"
        if self.responses == "present" or (self.chat == "absent" and self.is_known):
            return f"speaks Responses at {at}; /chat/completions is {self.chat} there"
        if self.is_known:
            return f"speaks Chat Completions at {at}; /responses is {self.responses} there"
        if self.responses == self.chat == "absent":
            return f"has neither /responses nor /chat/completions at {at}: is `url` right?"
        return f"did not tell what it speaks at {at}: {self.reason}; the next turn asks again"


class _Reply(msgspec.Struct, frozen=True):
    """The reply to one probe; without a status, there was none."""

    path: str
    status: int | None
    body: bytes = b""
    problem: str = ""
    has_hung: bool = False


def judge(status: int, body: bytes) -> Verdict:
    """Return what the reply to an empty request says about its path."""
    value = _decode(body)
    if 200 <= status < 300:
        if _is_answer(value):
            return "present"
        return "unclear" if has_error(body) else "absent"
    if status in (404, 405):
        return "unclear" if has_error(body) else "absent"
    if status < 400 or status in _UNKNOWN_STATUSES or status >= 500:
        return "unknown"
    # A complaint about the request; in other words than JSON, a firewall's perhaps.
    return "present" if isinstance(value, dict | list) else "unclear"


async def detect_apis(upstream: Upstream) -> FoundApis:
    """Return what a server has; it is asked with and without /v1, and never raises."""
    configured = upstream.configured_base
    found, has_answered = await _ask(upstream, configured)
    if found.responses == found.chat == "present" or not has_answered:
        return found
    other, _ = await _ask(upstream, _other_base(configured))
    return other if other.score > found.score else found


def _other_base(base: str) -> str:
    return base.removesuffix("/v1") if base.endswith("/v1") else f"{base}/v1"


async def _ask(upstream: Upstream, base: str) -> tuple[FoundApis, bool]:
    """Return what a server has under one base URL, and whether it has replied at all."""
    replies = await asyncio.gather(
        _probe(upstream, base, RESPONSES_PATH), _probe(upstream, base, CHAT_PATH)
    )
    verdicts = [
        judge(reply.status, reply.body) if reply.status is not None else "unknown"
        for reply in replies
    ]
    # Two complaints in different words may be one about the request, and one about the path. So may
    # those at a place that nobody has named.
    is_other = base != upstream.configured_base
    has_both = verdicts == ["present", "present"]
    is_doubtful = has_both and (is_other or _saying(replies[0]) != _saying(replies[1]))
    if "unclear" in verdicts or is_doubtful:
        control = await _probe(upstream, base, NO_PATH)
        verdicts = [
            _compare(reply, control) if verdict == "unclear" or is_doubtful else verdict
            for reply, verdict in zip(replies, verdicts, strict=True)
        ]
    responses, chat = (verdict if verdict != "unclear" else "unknown" for verdict in verdicts)
    problems = [reply.problem for reply in replies if reply.problem]
    found = FoundApis(
        base=base,
        responses=responses,
        chat=chat,
        reason=problems[0] if problems else "",
        has_hung=any(reply.has_hung for reply in replies),
    )
    return found, any(reply.status is not None for reply in replies)


def _compare(reply: _Reply, control: _Reply) -> Presence:
    """Return what an unclear reply says beside the reply of a path that does not exist."""
    if control.status is None:
        return "present" if judge(reply.status or 0, reply.body) == "present" else "unknown"
    if (reply.status, _saying(reply)) != (control.status, _saying(control)):
        return "present"
    # The same for everything: the path is not there, or something in front of it answers.
    is_missing = control.status in (400, 404, 405) or control.status < 300
    return "absent" if is_missing else "unknown"


async def _probe(upstream: Upstream, base: str, path: str) -> _Reply:
    request = upstream.build_request("POST", path, (b"{}",), may_repeat=True, base=base)
    reader = _Beginning()
    try:
        async with asyncio.timeout(PROBE_SECONDS), upstream.exchange(request) as answer:
            problem = f"it answers {path} with status {answer.status}"
            if answer.status in (401, 403):
                problem += ", which is about its key"
            if (target := redirect_target(answer.status, answer.headers)) is not None:
                problem = f"it redirects {path} to {target}: set `url` to that server's address"
            await answer.copy_to(reader)
            return _Reply(path, answer.status, bytes(reader.body), problem)
    except TimeoutError:
        text = f"no answer within {PROBE_SECONDS:g} s"
        return _Reply(path, None, problem=text, has_hung=True)
    except (ProviderFailure, OSError, UnicodeError) as exc:
        message = exc.message if isinstance(exc, ProviderFailure) else str(exc)
        return _Reply(path, None, problem=redact(message, upstream.settings.key))


class _Beginning:
    """Keeps the beginning of a body; a reply to an empty request is short."""

    def __init__(self) -> None:
        self.body = bytearray()

    def write(self, piece: bytes) -> bool:
        self.body += piece[: MAX_REPLY_BYTES - len(self.body)]
        if len(self.body) >= MAX_REPLY_BYTES:
            raise StopReading
        return True

    async def drain(self) -> None:
        """Do nothing: it is never full."""


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _first(value: Any) -> Any:
    """Return the object of a reply; some servers put it into a list."""
    return value[0] if isinstance(value, list) and value else value


def _is_answer(value: Any) -> bool:
    """Return whether a body is an answer of either API: some servers answer anything."""
    return isinstance(value, dict) and ("choices" in value or "output" in value)


def _saying(reply: _Reply) -> str:
    """Return a reply's message, without the path that it may quote."""
    value = _first(_decode(reply.body))
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if message is None and isinstance(value, dict):
        message = value.get("message")
    text = message if isinstance(message, str) else reply.body.decode("utf-8", "replace")
    return text.replace(reply.path, "").replace(reply.path[1:], "")


def _shown(url: str) -> str:
    """Return a URL without its query, which may hold a key."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
