"""Projects a transcript to a valid model request: every call with one output, every output once.

The log is never changed for this. A call that never ended gets a synthetic output. A late output
replaces it, next to its call, until a model has answered it: then it stays, and the late output is
shown as a text where it stands, so that what was sent only grows. What every server requires is
done here; what one kind of server requires besides is done by its provider, from the same bytes.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.model.gateway_items import (
    APPROVAL,
    CALL,
    GATEWAY_KINDS,
    to_function_item,
    unanswered_output,
)
from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, read_role
from holdfast.core.model.synthetic_outputs import (
    INTERRUPTED,
    OUTPUT_KINDS,
    OUTPUT_OF,
    interrupted_output,
)
from holdfast.core.projection.call_ids import CallIdAllocator
from holdfast.core.projection.late_outputs import late_output
from holdfast.core.projection.normalize import is_valid_message, normalize_item
from holdfast.core.projection.placeholders import placeholder

_IN_ONE_ANSWER = frozenset(OUTPUT_OF) | {CALL, "reasoning"}
"""Kinds of items that may follow a call in the answer that makes it."""


class ProjectedItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a request, its place in the log, and the call that it answers, if any."""

    body: bytes
    seq: int | None
    call: StoredItem | None = None


def project(items: Iterable[StoredItem], quarantined: Collection[int] = ()) -> list[bytes]:
    """Return the bodies of a valid request: pairs together, orphans completed, nothing rewritten.

    Items that are `quarantined` are shown as placeholders.
    """
    # A list first: to look up the abstract class costs more than to project two items.
    listed = items if type(items) is list or isinstance(items, Sequence) else list(items)
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
    """Return what is new to a provider that has everything up to `covers_seq`.

    None when appending is not enough: a late output replaces a synthetic one that was sent, or one
    that was sent has the place of an output that was hidden.
    """
    listed = list(items)
    covered = [item for item in listed if item.seq <= covers_seq]
    last_turn = covered[-1].turn_number if covered else None
    new: list[bytes] = []
    for shown in show(listed, quarantined):
        call = shown.call
        if (shown.seq or covers_seq + 1) <= covers_seq and (call is None or call.seq <= covers_seq):
            continue
        if call is None or call.seq > covers_seq or call.turn_number == last_turn:
            if shown.seq is None and call is not None and _is_answered(call, covered):
                return None
            new.append(shown.body)
        elif shown.seq is not None:
            # The call of an earlier turn was sent with an output, if only a synthetic one.
            return None
    return new


def _is_answered(call: StoredItem, covered: Sequence[StoredItem]) -> bool:
    """Whether a model has answered again after a call, and so was sent an output of it.

    The calls of one answer follow each other; behind a gap, where items are hidden, is another.
    """
    later = (item for item in covered if item.seq > call.seq)
    return any(
        item.seq != seq or item.kind not in _IN_ONE_ANSWER
        for seq, item in enumerate(later, call.seq + 1)
    )


def show(items: Iterable[StoredItem], quarantined: Collection[int] = ()) -> list[ProjectedItem]:
    """Return the items of a valid request, each with its place in the log."""
    return _Projector(_presentable(items, quarantined)).show()


class _Presentable(NamedTuple):
    """The items of a log that can be shown."""

    listed: list[StoredItem]
    behind_gaps: set[int]
    """The indexes of items before which something is hidden, or a user said nothing."""
    gateway_items: list[StoredItem]
    """What the gateway's tools left."""


def _presentable(items: Iterable[StoredItem], quarantined: Collection[int]) -> _Presentable:
    """Drop items without content; replace items that cannot be sent by placeholders."""
    listed: list[StoredItem] = []
    behind_gaps: set[int] = set()
    gateway_items: list[StoredItem] = []
    last_seq = -1
    for item in items:
        if item.seq != last_seq + 1:
            behind_gaps.add(len(listed))
        last_seq = item.seq
        if item.kind in GATEWAY_KINDS:
            gateway_items.append(item)
            translated = to_function_item(item.body)
            if translated is not None:
                kind, function = translated
                given = msgspec.structs.replace(item, kind=kind, body=function)
                shown = placeholder(given) if item.seq in quarantined else function
                body = normalize_item(kind, shown) if shown is not None else None
                listed.append(msgspec.structs.replace(given, body=body or function))
            continue
        if item.is_partial and (item.call_id or item.kind == "reasoning"):
            continue  # an incomplete call or incomplete reasoning is useless
        if not item.call_id and (item.kind in OUTPUT_OF or item.kind in OUTPUT_KINDS):
            continue
        # A summary (turn 0) has the sequence number of its last item, but is not that item.
        is_quarantined = item.seq in quarantined and item.turn_number > 0
        body = placeholder(item) if is_quarantined else item.body
        if body is not None:
            body = normalize_item(item.kind, body)
        if body is None:
            if not _is_models(item):
                behind_gaps.add(len(listed))
            continue
        listed.append(item if body is item.body else msgspec.structs.replace(item, body=body))
    return _Presentable(listed, behind_gaps, gateway_items)


class _Projector:
    """Shows a log; the calls of one answer stay together, and so do their outputs behind them."""

    def __init__(self, log: _Presentable) -> None:
        self._log = log
        self._outputs = _pair(log.listed)
        """The index of each call's output, by the call's index."""
        self._names = CallIdAllocator()
        self._batch: list[int] = []
        """The calls of the answer that is being shown, whose outputs were not shown yet."""
        self._late: dict[int, StoredItem] = {}
        """The calls whose synthetic outputs were answered, by the index of the late output."""
        self._shown: list[ProjectedItem] = []

    def show(self) -> list[ProjectedItem]:
        """Return the items of a valid request, each with its place in the log."""
        for index, item in enumerate(self._log.listed):
            self._add(index, item)
        self._end_batch(len(self._log.listed))
        return self._shown

    def _add(self, index: int, item: StoredItem) -> None:
        batch, listed = self._batch, self._log.listed
        if batch and not _is_same_turn(listed[batch[-1]], item):
            # What a model was shown of a turn that ended stays as it was.
            self._end_batch(index)
        if _is_output(item):
            self._end_batch(index)
            call = self._late.get(index)
            if call is not None:
                body = late_output(call, self._names.id_of(call), item)
                self._shown.append(ProjectedItem(body, item.seq))
            return
        if item.call_id:
            batch.append(index)
            self._shown.append(ProjectedItem(self._names.of_call(item), item.seq))
            return
        is_shown, stays = True, False
        if item.kind == "reasoning":
            leads_to = _leads_to(listed, index)
            is_shown, stays = leads_to is not None, leads_to is None or bool(leads_to.call_id)
        if batch and not stays and not self._is_same_answer(index):
            self._end_batch(index)
        if is_shown:
            self._shown.append(ProjectedItem(item.body, item.seq))

    def _is_same_answer(self, index: int) -> bool:
        """Whether an item behind a call is part of the answer that made the call."""
        return index not in self._log.behind_gaps and _is_models(self._log.listed[index])

    def _end_batch(self, end: int) -> None:
        """Show the outputs of the open calls; what a model answered before `end` had none yet."""
        listed = self._log.listed
        for index in self._batch:
            call, place = listed[index], self._outputs.get(index)
            needs_output = call.kind in OUTPUT_OF
            if place is not None and needs_output and any(map(_is_models, listed[end:place])):
                self._late[place] = call
                place = None
            if place is not None:
                output = listed[place]
                body = self._names.of_output(call, output)
                self._shown.append(ProjectedItem(body, output.seq, call))
            elif needs_output:
                text = _unanswered(call, self._log.gateway_items)
                body = interrupted_output(call.kind, self._names.id_of(call), text)
                self._shown.append(ProjectedItem(body, None, call))
        self._batch.clear()


def _pair(listed: Sequence[StoredItem]) -> dict[int, int]:
    """Return the index of the output of each call, by the call's index.

    An output belongs to the nearest call before it that has its id and no output; where no such
    call comes before it, to the first one behind it. Every other output is dropped.
    """
    outputs: dict[int, int] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    early: dict[str, list[int]] = {}
    batch = 0
    for index, item in enumerate(listed):
        name = item.call_id
        batch += index > 0 and not _is_same_turn(listed[index - 1], item)
        if not name:
            batch += item.kind != "reasoning"
        elif not _is_output(item):
            if early.get(name):
                outputs[index] = early[name].pop(0)
            else:
                waiting.setdefault(name, []).append((batch, index))
        else:
            batch += 1
            call = waiting.get(name)
            if call:
                last = call[-1][0]
                place = next(n for n, (number, _) in enumerate(call) if number == last)
                outputs[call.pop(place)[1]] = index
            elif call is None:
                early.setdefault(name, []).append(index)
    return outputs


def _unanswered(call: StoredItem, gateway_items: Sequence[StoredItem]) -> str:
    """Return the synthetic output of a call that has none."""
    own = next((each for each in gateway_items if each.seq == call.seq), None)
    if own is None or own.kind != CALL:
        return INTERRUPTED
    approvals = (each.body for each in gateway_items if each.kind == APPROVAL)
    return unanswered_output(own.body, approvals)


def _is_same_turn(one: StoredItem, other: StoredItem) -> bool:
    return (one.turn_number, one.session_id) == (other.turn_number, other.session_id)


def _is_models(item: StoredItem) -> bool:
    """Whether a model made an item, as a part of an answer."""
    if item.kind == "message":
        return read_role(item.body).role == "assistant"
    is_call = item.call_id is not None and not _is_output(item)
    return is_call or item.kind == "reasoning" or item.kind.endswith("_call")


def _is_output(item: StoredItem) -> bool:
    return item.call_id is not None and item.kind.endswith(OUTPUT_SUFFIX)


def _leads_to(listed: Sequence[StoredItem], index: int) -> StoredItem | None:
    """Return the item of the same turn that reasoning led to; without it reasoning is dropped."""
    turn_number = listed[index].turn_number
    for place in range(index + 1, len(listed)):
        following = listed[place]
        if following.turn_number != turn_number:
            return None
        if following.kind != "reasoning":
            return None if _is_output(following) else following
    return None
