"""From a transcript to what a model may be shown: every call with its output, every output once.

The log is never changed for this. A call that never ended gets a synthetic output here; a late
one takes its place, at its call. What holds for every server is settled here; what one kind of
server wants besides is settled by its provider, from the same bytes.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem
from holdfast.core.model.synthetic_outputs import (
    INTERRUPTED,
    OUTPUT_KINDS,
    OUTPUT_OF,
    interrupted_output,
)
from holdfast.core.projection.call_ids import CallIdAllocator
from holdfast.core.projection.normalize import is_valid_message, normalize_item
from holdfast.core.projection.placeholders import placeholder

__all__ = ["INTERRUPTED", "ProjectedItem", "continue_after", "project", "show"]


class ProjectedItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a request: where it stands in the log, and the call that it answers, if any."""

    body: bytes
    seq: int | None
    call: StoredItem | None = None


def project(items: Iterable[StoredItem], quarantined: Collection[int] = ()) -> list[bytes]:
    """Return the bodies of a valid request: pairs together, orphans completed, nothing rewritten.

    Items that are `quarantined` are shown as placeholders.
    """
    listed = items if isinstance(items, Sequence) else list(items)
    bodies: list[bytes] = []
    for item in listed:
        # Most of a conversation is plain messages, which need no pairing.
        is_plain = item.kind == "message" and not item.call_id and not quarantined
        if not is_plain or not is_valid_message(item.body):
            return [shown.body for shown in show(listed, quarantined)]
        bodies.append(item.body)
    return bodies


def continue_after(
    items: Iterable[StoredItem], covers_seq: int, quarantined: Collection[int] = ()
) -> list[bytes] | None:
    """Return what is new to somebody who was shown everything up to `covers_seq`.

    None when it cannot be told by adding alone: an output came late, in the place of one that was
    made up and shown.
    """
    listed = list(items)
    covered = [item.turn_number for item in listed if item.seq <= covers_seq]
    last_turn = covered[-1] if covered else None
    new: list[bytes] = []
    for shown in show(listed, quarantined):
        call = shown.call
        if (shown.seq or covers_seq + 1) <= covers_seq and (call is None or call.seq <= covers_seq):
            continue
        if call is None or call.seq > covers_seq or call.turn_number == last_turn:
            new.append(shown.body)
        elif shown.seq is not None:
            # A call of an earlier turn was answered, if only by a made-up output, when it passed.
            return None
    return new


def show(items: Iterable[StoredItem], quarantined: Collection[int] = ()) -> list[ProjectedItem]:
    """Return the items of a valid request, each with its place in the log."""
    listed = _presentable(items, quarantined)
    answers = _pair(listed)
    names = CallIdAllocator()
    shown: list[ProjectedItem] = []
    breath: list[int] = []
    for index, item in enumerate(listed):
        if item.call_id is not None and _is_output(item):
            shown += _answer(listed, breath, answers, names)
            continue
        if item.call_id:
            # Calls made in one breath stay together, and so do their outputs behind them.
            breath.append(index)
            shown.append(ProjectedItem(names.of_call(item), item.seq))
            continue
        if item.kind == "reasoning":
            leads_to = _leads_to(listed, index)
            if leads_to is None:
                continue
            if breath and not leads_to.call_id:
                shown += _answer(listed, breath, answers, names)
        elif breath:
            shown += _answer(listed, breath, answers, names)
        shown.append(ProjectedItem(item.body, item.seq))
    if breath:
        shown += _answer(listed, breath, answers, names)
    return shown


def _presentable(items: Iterable[StoredItem], quarantined: Collection[int]) -> list[StoredItem]:
    """Leave out what says nothing; put placeholders where something cannot be shown."""
    listed: list[StoredItem] = []
    for item in items:
        if item.is_partial and (item.call_id or item.kind == "reasoning"):
            continue  # half a call or half a thought is worth nothing
        if not item.call_id and (item.kind in OUTPUT_OF or item.kind in OUTPUT_KINDS):
            continue
        # What stands for a range (turn 0) has the number of its last item, and is not that item.
        is_refused = item.seq in quarantined and item.turn_number > 0
        body = placeholder(item) if is_refused else item.body
        if body is not None:
            body = normalize_item(item.kind, body)
        if body is None:
            continue
        listed.append(item if body is item.body else msgspec.structs.replace(item, body=body))
    return listed


def _pair(listed: Sequence[StoredItem]) -> dict[int, StoredItem]:
    """Return the output of each call, by the call's index.

    An output belongs to the nearest call before it with its id that has none; where there is no
    such call before it at all, to the first behind it. Every other output is one too many.
    """
    answers: dict[int, StoredItem] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    early: dict[str, list[StoredItem]] = {}
    breath = 0
    for index, item in enumerate(listed):
        name = item.call_id
        if not name:
            breath += item.kind != "reasoning"
        elif not _is_output(item):
            if early.get(name):
                answers[index] = early[name].pop(0)
            else:
                waiting.setdefault(name, []).append((breath, index))
        else:
            breath += 1
            found = waiting.get(name)
            if found:
                last = found[-1][0]
                place = next(n for n, (number, _) in enumerate(found) if number == last)
                answers[found.pop(place)[1]] = item
            elif found is None:
                early.setdefault(name, []).append(item)
    return answers


def _answer(
    listed: Sequence[StoredItem], breath: list[int], answers: dict[int, StoredItem],
    names: CallIdAllocator,
) -> list[ProjectedItem]:  # fmt: skip
    """Return the outputs of the calls of one breath, and begin another."""
    given: list[ProjectedItem] = []
    for index in breath:
        call, output = listed[index], answers.get(index)
        if output is not None:
            given.append(ProjectedItem(names.of_output(call, output), output.seq, call))
        elif call.kind in OUTPUT_OF:
            given.append(
                ProjectedItem(interrupted_output(call.kind, names.name_of(call)), None, call)
            )
    breath.clear()
    return given


def _is_output(item: StoredItem) -> bool:
    return item.call_id is not None and item.kind.endswith(OUTPUT_SUFFIX)


def _leads_to(listed: Sequence[StoredItem], index: int) -> StoredItem | None:
    """Reasoning travels with the item it led to, of the same turn, or not at all."""
    turn_number = listed[index].turn_number
    for place in range(index + 1, len(listed)):
        following = listed[place]
        if following.turn_number != turn_number:
            return None
        if following.kind != "reasoning":
            return None if _is_output(following) else following
    return None
