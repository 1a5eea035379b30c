"""The kinds of faults and their parameters, as written in TOML and JSON.

A fault has conditions (`when`, `times`, `chance`) and a `kind`. Catalogue ids are kinds as well:
`kind = "R02"`.
"""

import re
from typing import Any, Literal

import msgspec

from holdfast.simulator.faults.catalogue import CATALOGUE
from holdfast.simulator.faults.matching import Match
from holdfast.simulator.faults.quantities import (
    Chance,
    Count,
    HeaderName,
    HeaderValue,
    Seconds,
    Status,
)

Ending = Literal["clean", "eof", "reset"]
"""How a cut answer ends: a proper end of body, a bare FIN in mid-body, or a RST."""

_EVERY_CALL = Match()


class Fault(
    msgspec.Struct,
    tag_field="kind",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    frozen=True,
):
    """The calls that a fault applies to; subclasses define what happens."""

    when: Match = _EVERY_CALL
    times: Count | None = None
    """How many calls in all; None is every one."""
    chance: Chance = 1.0
    """The probability for each call, decided by the seed."""


class ListedFault(Fault, tag="listed", frozen=True):
    """Answer with an error of the catalogue, its placeholders filled from `values`."""

    id: str
    values: dict[str, str | int] = {}


class ErrorFault(Fault, tag="error", frozen=True):
    """Answer with any status and message."""

    status: Status = 500
    message: str = "The server had an error while processing your request. Sorry about that!"
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    retry_after_seconds: Seconds | None = None
    headers: dict[HeaderName, HeaderValue] = {}


class RateLimit(Fault, tag="rate_limit", frozen=True):
    """429 `rate_limit_exceeded` with Retry-After (C05)."""

    retry_after_seconds: Seconds = 1.0


class Quota(Fault, tag="quota", frozen=True):
    """429 `insufficient_quota` (C04)."""


class Overflow(Fault, tag="overflow", frozen=True):
    """Context overflow: as an error before output, or as an event of the stream."""

    at: Literal["before", "stream"] = "before"


class Overloaded(Fault, tag="overloaded", frozen=True):
    """Anthropic's `overloaded_error`: 529 before output, or as an event of the stream."""

    at: Literal["before", "stream"] = "before"
    event: Count = 1
    """How many events leave first."""


class Cut(Fault, tag="cut", frozen=True):
    """End the answer early: after `event` events, or after `byte` bytes of the body."""

    event: Count | None = None
    byte: Count | None = None
    ending: Ending = "clean"
    terminal: bool = False
    """Send the terminal event last, so that only `[DONE]` and what lies between are missing."""
    stored: bool = False
    """The server keeps the whole answer although the client saw only a part."""


class Failed(Fault, tag="failed", frozen=True):
    """The server fails in mid-stream (R12), or answers with status `failed`."""

    event: Count = 3
    style: Literal["failed", "error"] = "failed"


class Incomplete(Fault, tag="incomplete", frozen=True):
    """The answer stops early with `response.incomplete` (or a length finish)."""

    reason: Literal["max_output_tokens", "content_filter"] = "max_output_tokens"
    words: Count = 3
    """How many words of the text are sent."""


class Cancelled(Fault, tag="cancelled", frozen=True):
    """The response ends with status `cancelled` after `event` events."""

    event: Count = 3


class QueuedForever(Fault, tag="queued", frozen=True):
    """The response is queued and never starts."""


class Hang(Fault, tag="hang", frozen=True):
    """Send nothing more, before the headers or after `event` events, until released or closed."""

    event: Count | None = None


class Late(Fault, tag="late", frozen=True):
    """Do the work, store the result, and answer only after the client has disconnected."""


class Drop(Fault, tag="drop", frozen=True):
    """Close the connection before any answer."""

    ending: Literal["eof", "reset"] = "reset"
    stored: bool = False
    """Do the work first: only the answer is lost."""


class Slow(Fault, tag="slow", frozen=True):
    """Wait before the answer, or between its events."""

    before_seconds: Seconds = 0.0
    between_seconds: Seconds = 0.0


class DuplicateChunks(Fault, tag="duplicate_chunks", frozen=True):
    """Send each delta twice, or only the event numbered `event`."""

    event: Count | None = None


class ConstantCallIds(Fault, tag="constant_call_ids", frozen=True):
    """Give every tool call the same id, as some local servers do."""

    call_id: str = "call_1"


class IgnorePrevious(Fault, tag="ignore_previous", frozen=True):
    """Accept previous_response_id and ignore it (R15)."""


class Unlink(Fault, tag="unlink", frozen=True):
    """Remove the earlier assistant items from the conversation (R16)."""


class Forget(Fault, tag="forget", frozen=True):
    """Answer normally and store nothing, whatever `store` says."""


class Lock(Fault, tag="lock", frozen=True):
    """The conversation is in use by another call (R08)."""


Effect = (
    ListedFault
    | ErrorFault
    | RateLimit
    | Quota
    | Overflow
    | Overloaded
    | Cut
    | Failed
    | Incomplete
    | Cancelled
    | QueuedForever
    | Hang
    | Late
    | Drop
    | Slow
    | DuplicateChunks
    | ConstantCallIds
    | IgnorePrevious
    | Unlink
    | Forget
    | Lock
)

ANSWERING = (ListedFault, ErrorFault, RateLimit, Quota, Overflow, Overloaded, Drop, Lock)
"""The kinds that are an answer by themselves: no other fault applies after one of them."""

_LISTED_BEHAVIOURS: dict[str, dict[str, Any]] = {
    "R11": {"kind": "overflow", "at": "stream"},
    "R12": {"kind": "failed"},
    "R13": {"kind": "cut", "event": 3},
    "R14": {"kind": "incomplete"},
    "R15": {"kind": "ignore_previous"},
    "R16": {"kind": "unlink"},
    "C06": {"kind": "cut", "event": 3},
    "A10": {"kind": "overloaded", "at": "stream"},
}


def as_written(raw: Any) -> Any:
    """Return a fault as `Effect` reads it: a bare kind is a table, a catalogue id is a kind."""
    table = {"kind": raw} if isinstance(raw, str) else raw
    if not isinstance(table, dict):
        return table
    kind = table.get("kind")
    rest = {key: value for key, value in table.items() if key != "kind"}
    if kind == "listed":
        kind = rest.pop("id", None)
    if not isinstance(kind, str) or kind not in CATALOGUE:
        return {**rest, "kind": kind} if "kind" in table else table
    if kind in _LISTED_BEHAVIOURS:
        return _LISTED_BEHAVIOURS[kind] | rest
    return {"kind": "listed", "id": kind, **rest}


def read_fault(raw: Any) -> Effect:
    """Return the fault that `raw` (JSON or TOML) describes, or raise `msgspec.ValidationError`."""
    fault: Effect = msgspec.convert(as_written(raw), Effect)
    if isinstance(fault, ListedFault) and fault.id not in CATALOGUE:
        raise msgspec.ValidationError(f"no fault {fault.id!r} in the catalogue - at `$.id`")
    if isinstance(fault, ListedFault):
        _require_number(fault.values.get("seconds", 0))
    return fault


def _require_number(seconds: str | int) -> None:
    """Raise unless `seconds` is a number that fits a header."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", str(seconds)):
        raise msgspec.ValidationError(f"expected a number, got {seconds!r} - at `$.values.seconds`")
