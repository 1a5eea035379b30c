"""The seam between asking and compaction: somebody who keeps requests within a model's window.

What is shown to a model is a list of stored items; whoever fits it returns another such list, in
which a summary or a shortened output may stand for a range of the log. The log itself is written
by that somebody, fenced by the run; here it is only asked for.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.core.compaction.records import CompactionReason
from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import Usage
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.provider import ModelCall, Provider


class FitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be sent, or was refused for its length."""

    run: ActiveRun
    request: TurnRequest
    provider: Provider
    model: str
    """The model that is asked; after a fall-back not the one that the request names."""
    history: Sequence[StoredItem]


class CompactionResult(msgspec.Struct, frozen=True):
    """A compaction: the item that carries it to a client, and what it cost."""

    item: bytes
    usage: Usage | None = None
    is_recorded: bool = True
    """False where the log is so short that a summary would be no less."""


class ContextFitter(Protocol):
    """Keeps requests within the windows of models."""

    def sent(self, request: TurnRequest) -> TurnRequest:
        """Return a request without what it asks of us, not of its model."""
        ...

    def learn(self, provider: Provider, call: ModelCall, usage: Usage | None) -> None:
        """Take in how many tokens a call had, as its provider counted."""
        ...

    async def fit(self, asked: FitRequest) -> Sequence[StoredItem]:
        """Return what to show, before it is sent; the same list where nothing must be done.

        Raises nothing for a request that cannot be made to fit: its provider judges it.
        """
        ...

    async def compact(
        self,
        run: ActiveRun,
        *,
        model: str | None,
        reason: CompactionReason = "asked",
        prompt: str | None = None,
    ) -> "CompactionResult":
        """Have one summary stand for all that was said so far, if that is less."""
        ...

    async def shrink(
        self, asked: FitRequest, failure: ProviderFailure
    ) -> Sequence[StoredItem] | None:
        """Return strictly less than was refused as too long; None when there is no less.

        Provider state that holds the longer history is dropped by the caller, for this model.
        """
        ...
