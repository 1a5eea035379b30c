"""How a turn is put to a model at one moment; each heal makes another question of it."""

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.poison_items import poison_candidates
from holdfast.core.model.items import StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.request import TurnRequest
from holdfast.core.projection.project import continue_after, show
from holdfast.engine.model_call.projection_cache import Projections
from holdfast.ports.provider import ModelCall, Provider, StateUse

Remembered = tuple[ProviderState, list[bytes]]
"""What a provider remembers, and what is new to it."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked, with what history, and how carefully."""

    provider: Provider
    model: str
    history: Sequence[StoredItem]
    turn_number: int
    use: StateUse | None = None
    state: Remembered | None = None
    quarantined: frozenset[int] = frozenset()
    """Items that some provider could not take."""
    allows_opaque: bool = True
    is_plain: bool = False

    def call(
        self, request: TurnRequest, session_id: str, projections: Projections, *, is_stream: bool
    ) -> ModelCall:
        """Return the call that puts the question."""
        return ModelCall(
            model=self.model,
            items=projections.project(session_id, self.history, self.quarantined),
            fields=request.fields,
            chat_fields=request.chat_fields,
            is_stream=is_stream,
            session_id=session_id,
            keeps_state=request.is_stored,
            state=self.state[0] if self.state else None,
            new_items=self.state[1] if self.state else [],
            allows_opaque=self.allows_opaque and not self.is_plain,
            is_plain=self.is_plain,
        )

    def suspects(self, failure: ProviderFailure) -> tuple[int, ...]:
        """Return the items that the provider may have been unable to take."""
        is_poison = failure.failure_class == "poison"
        if not is_poison and failure.failure_class != "terminal":
            return ()
        return poison_candidates(
            self.history,
            # A refusal of anything may name a picture's address; only that of an item, a place.
            named=self._named(failure) if is_poison else (),
            message=failure.message,
            turn_number=self.turn_number,
            quarantined=self.quarantined,
            is_only_named=not is_poison,
        )

    def _named(self, failure: ProviderFailure) -> set[int]:
        """Return the items at the places that the provider names in what it was sent."""
        shown = show(self.history, self.quarantined)
        if self.state is not None:
            sent = set(self.state[1])
            shown = [one for one in shown if one.body in sent]
        places = [place for place in failure.places if place < len(shown)]
        found = (shown[place] for place in places)
        return {one.seq for one in found if one.seq is not None}


def find_state(
    question: Question, states: Sequence[ProviderState], *, has_run_before: bool
) -> Remembered | None:
    """Return what the provider remembers and what is new to it, if that can be gone on from."""
    use = question.use
    if use is None:
        return None
    state = next((state for state in states if state.slot == use.slot), None)
    if state is None:
        return None
    if use.is_mutable and (has_run_before or not _is_untouched(question, state)):
        return None
    new = continue_after(question.history, state.covers_seq, question.quarantined)
    return (state, new) if new else None


def _is_untouched(question: Question, state: ProviderState) -> bool:
    """Whether no other turn came between: one that broke may have left something there."""
    return all(
        item.turn_number == question.turn_number
        for item in question.history
        if item.seq > state.covers_seq
    )
