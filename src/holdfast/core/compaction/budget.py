"""What to leave out so that a request fits: whole units, oldest first, and never what must stay.

A unit is a call with its output, or reasoning with what it led to: a cut never falls inside one.
What must stay: system and developer messages, the first thing the user asked, configuration, and
what the turn that is being answered was given.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.compaction.records import SHORT_KINDS, truncate_output
from holdfast.core.compaction.token_estimate import Scale
from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem

LEAST_GAIN = 16
"""Tokens that shortening an output must save to be worth it."""
SUMMARY_TURN = 0
"""The turn number of a summary, which stands in no turn."""
_SHARE_OF_FIRST = 4
"""The user's first words stay as they are up to this part of the room; longer ones are quoted."""
_LEAST_OF_LAST = 256
"""Bytes of the newest output that are shown at least."""


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be shown."""

    tokens: int
    """What the items may have in all."""
    scale: Scale
    turn_number: int
    """The turn that is being answered."""
    summary_tokens: int = 0
    """What the summary may have of it."""
    elides_first: bool = False
    """Whether outputs are cut short before whole turns go."""
    is_whole: bool = False
    """Whether everything may go: nothing waits for an answer."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be left out; `to_seq` is 0 where no range is replaced by a summary."""

    to_seq: int = 0
    keeps: tuple[int, ...] = ()
    replaced: tuple[StoredItem, ...] = ()
    """What the summary has to stand for, as it was shown."""
    first: StoredItem | None = None
    """The first thing the user asked, where it is too long to stay and has to be quoted."""
    cuts: tuple[tuple[int, int], ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0


def plan(items: Sequence[StoredItem], room: TokenBudget) -> Plan | None:
    """Return how to bring a shown log into its room, or as near as can be; None: not smaller."""
    sizes = [room.scale.item(item.body) for item in items]
    before = sum(sizes)
    cuts: dict[int, int] = {}
    if room.elides_first:
        older = [i for i, item in enumerate(items) if item.turn_number != room.turn_number]
        _shorten(items, sizes, older, room, sum(sizes) - room.tokens, cuts)
        if sum(sizes) <= room.tokens:
            return _made(items, 0, set(), cuts, before, sum(sizes))
    kept = _kept(items, sizes, room)
    place = _cut(items, sizes, kept, room)
    if place:
        sizes = [size if i >= place or i in kept else 0 for i, size in enumerate(sizes)]
        cuts = {seq: size for seq, size in cuts.items() if seq > items[place - 1].seq}
    allowed = room.summary_tokens if place else 0
    if sum(sizes) + allowed > room.tokens:
        rest = range(place, len(items))
        _shorten(items, sizes, list(rest), room, sum(sizes) + allowed - room.tokens, cuts)
    return _made(items, place, kept, cuts, before, sum(sizes) + allowed)


def _made(
    items: Sequence[StoredItem],
    place: int,
    kept: set[int],
    cuts: dict[int, int],
    before: int,
    after: int,
) -> Plan | None:
    if after >= before or not (place or cuts):
        return None
    return Plan(
        to_seq=items[place - 1].seq if place else 0,
        keeps=tuple(sorted(items[i].seq for i in kept if i < place)),
        replaced=tuple(item for i, item in enumerate(items[:place]) if i not in kept),
        first=next((items[i] for i in _first_asked(items) if i < place and i not in kept), None),
        cuts=tuple(sorted(cuts.items())),
        tokens_before=before,
        tokens_after=after,
    )


# ── what stays ──────────────────────────────────────────────────────────────────────────────


class _Role(msgspec.Struct, gc=False):
    role: str | None = None


_read_role = msgspec.json.Decoder(_Role).decode


def role_of(item: StoredItem) -> str | None:
    """Return who says a message; None for anything else, and for a summary."""
    if item.kind != "message" or item.turn_number == SUMMARY_TURN:
        return None
    return _read_role(item.body).role


def _kept(items: Sequence[StoredItem], sizes: Sequence[int], room: TokenBudget) -> set[int]:
    """Return the places of what is shown whatever happens."""
    kept = {i for i in _first_asked(items) if sizes[i] * _SHARE_OF_FIRST <= room.tokens}
    for place, item in enumerate(items):
        role = role_of(item)
        is_asked = item.turn_number == room.turn_number and not room.is_whole
        is_standing = role in ("system", "developer") or item.kind == "configuration_update"
        if is_standing or (role == "user" and is_asked):
            kept.add(place)
    return kept


def _first_asked(items: Sequence[StoredItem]) -> list[int]:
    """Return the place of the user's first words, unless a summary before them quotes them."""
    for place, item in enumerate(items):
        if item.turn_number == SUMMARY_TURN:
            return []
        if role_of(item) == "user":
            return [place]
    return []


# ── where to cut ────────────────────────────────────────────────────────────────────────────


def whole_cuts(items: Sequence[StoredItem]) -> Iterator[int]:
    """Yield the places between items at which no unit is split, the end included."""
    last_output = {
        item.call_id: place
        for place, item in enumerate(items)
        if item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None
    }
    closed_at = 0
    for place, item in enumerate(items):
        if place and place >= closed_at:
            yield place
        if item.kind == "reasoning":
            closed_at = max(closed_at, place + 2)
        elif not item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None:
            closed_at = max(closed_at, last_output.get(item.call_id, place) + 1)
    if items:
        yield len(items)


def _cut(
    items: Sequence[StoredItem], sizes: Sequence[int], kept: set[int], room: TokenBudget
) -> int:
    """Return how many of the first items a summary stands for; none where that helps nothing."""
    if room.is_whole:
        return len(items) if _is_progress(items, kept, len(items)) else 0
    left = sum(sizes) + room.summary_tokens
    costs: dict[int, int] = {}
    for place in range(1, len(items)):
        if place - 1 not in kept:
            left -= sizes[place - 1]
        costs[place] = left
    possible = [place for place in whole_cuts(items) if place < len(items)]
    possible = [place for place in possible if _is_progress(items, kept, place)]
    between = [p for p in possible if items[p].turn_number != items[p - 1].turn_number]
    for places in (between, possible):
        fitting = next((p for p in places if costs[p] <= room.tokens), None)
        if fitting is not None:
            return fitting
    best = min(possible, key=lambda p: (costs[p], p), default=0)
    return best if best and costs[best] < sum(sizes) else 0


def _is_progress(items: Sequence[StoredItem], kept: set[int], place: int) -> bool:
    """Whether a cut leaves out more than the summary that is there already."""
    last_summary = max(
        (i for i, item in enumerate(items) if item.turn_number == SUMMARY_TURN), default=-1
    )
    return any(i not in kept and i > last_summary for i in range(place))


# ── shorter outputs ─────────────────────────────────────────────────────────────────────────


def _shorten(
    items: Sequence[StoredItem],
    sizes: list[int],
    places: Sequence[int],
    room: TokenBudget,
    excess: int,
    cuts: dict[int, int],
) -> None:
    """Cut outputs short, oldest first, until `excess` tokens are gone; the newest keeps most."""
    outputs = [place for place in places if items[place].kind in SHORT_KINDS]
    for place in outputs:
        if excess <= 0:
            return
        kept = 0
        if place == outputs[-1] and items[place].turn_number == room.turn_number:
            fitting = sizes[place] - excess - 2 * LEAST_GAIN
            kept = max(int(fitting * room.scale.bytes_per_token), _LEAST_OF_LAST)
        size = room.scale.item(truncate_output(items[place], kept).body)
        gain = sizes[place] - size
        if gain >= LEAST_GAIN:
            cuts[items[place].seq] = min(kept, cuts.get(items[place].seq, kept))
            sizes[place] = size
            excess -= gain
