"""How long a server asks to be left alone: in its headers, its details or its words."""

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

LONGEST_SECONDS = 366 * 86_400.0
_WORDS = re.compile(
    r"(?:try again|retry) in "
    r"((?:\d+(?:\.\d+)?\s?(?:ms|s|m|h)(?:ec(?:ond)?s?|in(?:ute)?s?|ours?)?[\s,]{0,2})+)",
    re.IGNORECASE,
)
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|s|m|h)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def retry_after(headers: Mapping[str, str], details: Any, message: str) -> float | None:
    """Return how many seconds to wait; None where the server does not say."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _read(headers.get(name), headers.get("date"))
        if seconds is not None:
            return seconds * scale
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
            return _number(detail["retryDelay"].removesuffix("s"))
    return _in_words(message)


def _read(raw: str | None, date: str | None) -> float | None:
    if raw is None:
        return None
    seconds = _number(raw)
    return seconds if seconds is not None else _until(raw, date)


def _number(raw: str) -> float | None:
    try:
        seconds = float(raw)
    except ValueError:
        return None
    is_one = math.isfinite(seconds) and seconds >= 0
    return min(seconds, LONGEST_SECONDS) if is_one else None


def _until(raw: str, date: str | None) -> float | None:
    """Return the seconds up to a date, by the server's own clock where it tells it."""
    then = _timestamp(raw)
    if then is None:
        return None
    now = _timestamp(date) if date is not None else None
    seconds = then - (now if now is not None else time.time())
    return min(max(seconds, 0.0), LONGEST_SECONDS)


def _timestamp(raw: str) -> float | None:
    try:
        return parsedate_to_datetime(raw).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _in_words(message: str) -> float | None:
    """Return what a message says: `Please try again in 1m30.5s.`"""
    found = _WORDS.search(message[:4000])
    if found is None:
        return None
    pieces = _PIECE.findall(found[1])
    return min(sum(float(n) * _SECONDS[unit.lower()] for n, unit in pieces), LONGEST_SECONDS)
