"""Deterministic ids and time, derived from the seed and from counters."""

from dataclasses import dataclass
from hashlib import blake2b

EPOCH_SECONDS = 1_760_000_000
"""The simulator's clock starts here; every call of an account moves it by one second."""


def digest(*parts: object, size: int = 24) -> str:
    """Return hex digits that depend on `parts` alone."""
    text = "\x1f".join(map(str, parts))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


@dataclass(slots=True)
class IdSequence:
    """The ids of one call: the same root gives the same ids in the same order."""

    root: str
    _count: int = 0

    def new(self, prefix: str, *, size: int = 24) -> str:
        """Return the next id, written `prefix` and hex digits."""
        self._count += 1
        return prefix + digest(self.root, prefix, self._count, size=size)

    def uuid(self) -> str:
        """Return the next id in the form of a UUID."""
        hexed = self.new("", size=16)
        return "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))


@dataclass(slots=True)
class ProviderClock:
    """A clock that moves only on request."""

    offset_seconds: int = 0

    def at(self, serial: int) -> int:
        """Return the time of an account's call number `serial`."""
        return EPOCH_SECONDS + self.offset_seconds + serial

    def advance(self, seconds: int) -> None:
        """Advance by `seconds`, for all accounts."""
        self.offset_seconds += seconds
