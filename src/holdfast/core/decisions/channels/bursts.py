"""Bursts: consecutive messages of one sender in one chat wait a moment and become one turn."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.decisions.lane import end_turn, pack_items, unpack_items
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.outgoing import delivery_of
from holdfast.core.transaction.session_draft import Draft

MAX_WAIT_FACTOR = 10
"""A burst waits for at most this many times `collect_seconds`, even if the sender keeps writing."""


def collects(turn: Turn) -> bool:
    """Whether a waiting turn may have to wait for the rest of its burst, or be merged with it."""
    return turn.source == "channel" and turn.first_seq is None


def burst_of(first: Turn, waiting: Sequence[Turn]) -> list[Turn]:
    """Return `first` and the turns of the same sender right behind it; they run as one turn."""
    delivery = delivery_of(first)
    found = [first]
    if delivery is None or not delivery.collect_seconds:
        return found
    for turn in waiting:
        if turn.position <= first.position:
            continue
        other = delivery_of(turn) if collects(turn) else None
        if other is None or other.burst != delivery.burst or turn.rewind_after is not None:
            break
        found.append(turn)
    return found


def ready_at(burst: Sequence[Turn]) -> float:
    """Return when a burst is complete: a pause after its last message, but within a limit."""
    first = burst[0]
    latest, seconds = first.accepted_at, 0.0
    for turn in burst:
        delivery = delivery_of(turn)
        wait = delivery.collect_seconds if delivery is not None else 0.0
        latest, seconds = max(latest, turn.accepted_at + wait), max(seconds, wait)
    return min(latest, first.accepted_at + seconds * MAX_WAIT_FACTOR)


def merge(draft: Draft, burst: Sequence[Turn]) -> Turn:
    """End all but the first turn of a burst; return the first with the input of all."""
    first = burst[0]
    items = list(unpack_items(first.input))
    for turn in burst[1:]:
        items += unpack_items(turn.input)
        end_turn(draft, replace(turn, input=None, merged_into=first.id), "completed")
    if len(burst) > 1:
        draft.wake()
    return replace(first, input=pack_items(items))
