"""Match calls against rules, and count the matches."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import msgspec

from holdfast.simulator.faults.quantities import Ordinal


class Match(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Conditions on a call; a condition that is not given matches everything."""

    api: str | None = None
    """`responses`, `conversations`, `chat`, `messages`, `models` or `audio`."""
    operation: str | None = None
    """`create`, `retrieve`, `list`, … as the reference names them."""
    method: str | None = None
    path: str | None = None
    """A glob over the path."""
    model: str | None = None
    """A glob over the body's model."""
    account: str | None = None
    """The whole bearer key."""
    text: str | None = None
    """Text that occurs anywhere in the body."""
    header: dict[str, str] = {}
    """Header names with a glob over each value."""
    stream: bool | None = None
    nth: Ordinal | None = None
    """Only the n-th call that matches everything else, counted from 1."""
    every: Ordinal | None = None
    """Only each n-th call that matches everything else."""


class Matchable(Protocol):
    """The parts of a call that rules can match."""

    @property
    def api(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def account_key(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def is_stream(self) -> bool: ...


def matches(match: Match, call: Matchable) -> bool:
    """Return whether `call` meets the conditions of `match`, without counting."""
    return (
        _same(match.api, call.api)
        and _same(match.operation, call.operation)
        and _same(match.method, call.method)
        and _same(match.account, call.account_key)
        and _globbed(match.path, call.path)
        and _globbed(match.model, call.model)
        and (match.stream is None or match.stream == call.is_stream)
        and (match.text is None or match.text in call.text)
        and all(
            fnmatchcase(call.headers.get(name.lower(), ""), value)
            for name, value in match.header.items()
        )
    )


def _same(wanted: str | None, found: str) -> bool:
    return wanted is None or wanted == found


def _globbed(wanted: str | None, found: str) -> bool:
    return wanted is None or fnmatchcase(found, wanted)


@dataclass(slots=True)
class Counter:
    """How often a rule has matched, and how often it may still apply."""

    match: Match
    times: int | None = None
    matched: int = 0
    acted: int = 0

    def count_match(self, call: Matchable, *, may_act: bool = True) -> bool:
        """Count `call` if it matches, and return whether the rule applies to it."""
        if not matches(self.match, call):
            return False
        self.matched += 1
        if self.match.nth is not None and self.matched != self.match.nth:
            return False
        if self.match.every is not None and self.matched % self.match.every:
            return False
        if not may_act or (self.times is not None and self.acted >= self.times):
            return False
        self.acted += 1
        return True
