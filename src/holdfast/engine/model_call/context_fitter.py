"""The port between model calls and compaction: keeps requests within a model's context window.

A fitter takes the items of a request and returns fewer or shorter ones: a summary may replace a
range of the log, and outputs may be truncated. It records this over the log, fenced by the run.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.core.compaction.records import CompactionReason
from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import Usage
from holdfast.engine.model_call.attempt import CallAttempt
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.provider import ModelCall, Provider


class CompactionResult(msgspec.Struct, frozen=True):
    """A compaction: the item that represents it for a client, and its usage."""

    item: bytes
    usage: Usage | None = None
    is_recorded: bool = True
    """False if the log is so short that a summary would not be shorter."""


class ContextFitter(Protocol):
    """Keeps requests within the context windows of models."""

    has_windows: bool
    """Whether any model's window may be known; if not, only fields of a request can limit it."""

    def strip_gateway_fields(self, request: TurnRequest) -> TurnRequest:
        """Return a request without the fields that are meant for the gateway."""
        ...

    def learn(self, provider: Provider, call: ModelCall, usage: Usage) -> None:
        """Learn from the number of tokens that the provider counted for a call."""
        ...

    def is_unbounded(self, attempt: CallAttempt) -> bool:
        """Whether no limit is known for the request, so that `fit` would change nothing."""
        ...

    async def fit(self, attempt: CallAttempt) -> Sequence[StoredItem]:
        """Return the history to send; the same list if it fits.

        A request that cannot be made to fit is not an error: its provider decides.
        """
        ...

    async def compact(
        self,
        run: ActiveRun,
        *,
        model: str | None,
        reason: CompactionReason = "asked",
        prompt: str | None = None,
    ) -> CompactionResult:
        """Replace the whole history by one summary, if that is shorter."""
        ...

    async def shrink(
        self, attempt: CallAttempt, failure: ProviderFailure
    ) -> Sequence[StoredItem] | None:
        """Return a strictly shorter history than the rejected one, or None if there is none.

        The caller drops provider state that contains the longer history.
        """
        ...

    async def withdraw(self, run: ActiveRun, after_record: int) -> None:
        """Undo what `shrink` recorded for a turn after a record, because it did not help."""
        ...
