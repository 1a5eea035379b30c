"""Read how long a server asks to wait: from its headers, its error details or its message."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any

MAX_SECONDS = 366 * 86_400.0
_IN_MESSAGE = re.compile(
    r"(?:try again|retry) in "
    r"((?:\d+(?:\.\d+)?\s?(?:ms|s|m|h)(?:ec(?:ond)?s?|in(?:ute)?s?|ours?)?[\s,]{0,2})+)",
    re.IGNORECASE,
)
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|s|m|h)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def retry_after(headers: Mapping[str, str], details: Any, message: str) -> float | None:
    """Return how many seconds to wait, or None if the server does not say."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _parse_header(headers.get(name), headers.get("date"))
        if seconds is not None:
            return seconds * scale
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
            return _parse_number(detail["retryDelay"].removesuffix("s"))
    return _from_message(message)


def _parse_header(raw: str | None, date: str | None) -> float | None:
    if raw is None:
        return None
    seconds = _parse_number(raw)
    return seconds if seconds is not None else _seconds_until(raw, date)


def _parse_number(raw: str) -> float | None:
    try:
        seconds = float(raw)
    except ValueError:
        return None
    is_valid = math.isfinite(seconds) and seconds >= 0
    return min(seconds, MAX_SECONDS) if is_valid else None


def _seconds_until(raw: str, date: str | None) -> float | None:
    """Return the seconds until a date, by the server's clock if it sends its time."""
    then = _parse_date(raw)
    if then is None:
        return None
    now = _parse_date(date) if date is not None else None
    seconds = then - (now if now is not None else time.time())
    return min(max(seconds, 0.0), MAX_SECONDS)


def _parse_date(raw: str) -> float | None:
    # Most servers send seconds; this module and those that it imports take 0.4 MB.
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(raw).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _from_message(message: str) -> float | None:
    """Return the time to wait in a message such as `Please try again in 1m30.5s.`"""
    match = _IN_MESSAGE.search(message[:4000])
    if match is None:
        return None
    amounts = _AMOUNT.findall(match[1])
    return min(sum(float(n) * _SECONDS[unit.lower()] for n, unit in amounts), MAX_SECONDS)
