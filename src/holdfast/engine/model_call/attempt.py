"""One attempt at a model call: the model and its context. Each heal derives the next attempt."""

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.refused_items import leave_out, poison_candidates
from holdfast.core.model.items import StoredItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import ProviderState
from holdfast.core.projection.project import continue_after, show
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.provider import Provider, StateUse

ChainedState = tuple[ProviderState, list[bytes]]
"""State that the provider has stored, and the items that are new to it."""


class CallAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to answer a turn; the provider gets it as a `ports.provider.ModelCall`."""

    request: TurnRequest
    provider: Provider
    model: str
    """The model to call; after a fallback it is not the one that the request names."""
    history: Sequence[StoredItem]
    """The context: the visible log with compactions applied, including this turn's input."""
    turn_number: int
    run: ActiveRun | None = None
    """The run that the call belongs to; None for a stateless request."""
    use: StateUse | None = None
    state: ChainedState | None = None
    quarantined: frozenset[int] = frozenset()
    """Items that some provider could not process."""
    allows_opaque: bool = True
    is_plain: bool = False
    left_out: tuple[int, ...] = ()
    """Items that were removed from `history` because the provider may refuse them."""
    placeholders: frozenset[int] = frozenset()
    """Those of them that stay as placeholders: outputs of tools."""

    def without(self, left_out: tuple[int, ...]) -> "CallAttempt":
        """Return the attempt without some items of its history."""
        history, placeholders = leave_out(self.history, left_out)
        return msgspec.structs.replace(
            self,
            history=history,
            left_out=left_out,
            placeholders=placeholders,
            quarantined=self.quarantined | placeholders,
            state=None,
        )

    def poison_candidates(self, failure: ProviderFailure) -> tuple[int, ...]:
        """Return the items that the provider may have been unable to process."""
        is_poison = failure.failure_class == "poison"
        if not is_poison and failure.failure_class != "terminal":
            return ()
        return poison_candidates(
            self.history,
            # Any refusal may quote the URL of an image; only a refusal of an item names a position.
            named=self._named_items(failure) if is_poison else (),
            message=failure.message,
            turn_number=self.turn_number,
            quarantined=self.quarantined,
            is_only_named=not is_poison,
        )

    def _named_items(self, failure: ProviderFailure) -> set[int]:
        """Return the items at the positions in the sent input that the failure names."""
        sent = show(self.history, self.quarantined)
        if self.state is not None:
            new = set(self.state[1])
            sent = [item for item in sent if item.body in new]
        items = (sent[place] for place in failure.places if place < len(sent))
        return {item.seq for item in items if item.seq is not None}


def find_state(
    attempt: CallAttempt, states: Sequence[ProviderState], *, has_run_before: bool
) -> ChainedState | None:
    """Return the provider state to continue from, with the items that are new to it, or None."""
    use = attempt.use
    if use is None:
        return None
    state = next((state for state in states if state.slot == use.slot), None)
    if state is None:
        return None
    if use.is_mutable and (has_run_before or not _is_untouched(attempt, state)):
        return None
    new = continue_after(attempt.history, state.covers_seq, attempt.quarantined)
    return (state, new) if new else None


def _is_untouched(attempt: CallAttempt, state: ProviderState) -> bool:
    """Whether no other turn ran since: a failed one may have changed the state upstream.

    Items of a turn that was hidden leave a gap.
    """
    new = [item for item in attempt.history if item.seq > state.covers_seq]
    is_next = bool(new) and new[0].seq == state.covers_seq + 1
    return is_next and all(item.turn_number == attempt.turn_number for item in new)
