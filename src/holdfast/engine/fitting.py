"""The seam between asking and compaction: somebody who keeps requests within a model's window.

What is shown to a model is a list of stored items; whoever fits it returns another such list, in
which a summary or a shortened output may stand for a range of the log. The log itself is written
by that somebody, fenced by the run; here it is only asked for.
"""

from typing import Protocol

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.items import StoredItem
from holdfast.core.request import TurnRequest
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.provider import Provider


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be sent, or was refused for its length."""

    run: ActiveRun
    request: TurnRequest
    provider: Provider
    model: str
    """The model that is asked; after a fall-back not the one that the request names."""
    history: list[StoredItem]


class Fitting(Protocol):
    """Keeps requests within the windows of models."""

    async def fit(self, asked: Asked) -> list[StoredItem]:
        """Return what to show, before it is sent; the same list where nothing must be done.

        Raises nothing for a request that cannot be made to fit: its provider judges it.
        """
        ...

    async def shrink(self, asked: Asked, failure: ProviderFailure) -> list[StoredItem] | None:
        """Return strictly less than was refused as too long; None when there is no less.

        Provider state that holds the longer history is dropped by the caller, for this model.
        """
        ...
