"""Plans what to leave out so that a request fits: whole units, oldest first.

A unit is a call with its output, or reasoning with the item it led to: a cut never falls inside
one. Always kept: system and developer messages, the user's first request, configuration, and the
input of the turn that is being answered.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.compaction.records import SHORT_KINDS, truncate_output
from holdfast.core.compaction.token_estimate import Scale
from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, read_role

MIN_GAIN = 16
"""Tokens that truncating an output must save to be worth it."""
SUMMARY_TURN = 0
"""The turn number of a summary, which belongs to no turn."""
_FIRST_REQUEST_SHARE = 4
"""The first request is kept if it takes at most 1/4 of the budget; a longer one is quoted."""
_MIN_LAST_OUTPUT = 256
"""Bytes of the newest output that are always sent."""


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens may be sent."""

    tokens: int
    """The limit for all items."""
    scale: Scale
    turn_number: int
    """The turn that is being answered."""
    summary_tokens: int = 0
    """The tokens reserved for the summary."""
    elides_first: bool = False
    """Whether outputs are truncated before whole turns are left out."""
    is_whole: bool = False
    """Whether everything may be replaced: no turn is being answered."""
    assumed_window: int | None = None
    """The window of which this is a share, where the model's own is not known."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to leave out; `to_seq` is 0 where no range is replaced by a summary."""

    to_seq: int = 0
    keeps: tuple[int, ...] = ()
    replaced: tuple[StoredItem, ...] = ()
    """The items that the summary replaces, as they were sent."""
    first: StoredItem | None = None
    """The user's first request, where it is too long to be kept and has to be quoted."""
    cuts: tuple[tuple[int, int], ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0


def plan_compaction(items: Sequence[StoredItem], budget: TokenBudget) -> Plan | None:
    """Return a plan that brings items within or close to a budget, or None if it saves nothing."""
    sizes = [budget.scale.item(item.body) for item in items]
    before = sum(sizes)
    cuts: dict[int, int] = {}
    if budget.elides_first:
        older = [i for i, item in enumerate(items) if item.turn_number != budget.turn_number]
        _truncate_outputs(items, sizes, older, budget, sum(sizes) - budget.tokens, cuts)
        if sum(sizes) <= budget.tokens:
            return _build_plan(items, 0, set(), cuts, before, sum(sizes))
    kept = _kept_indexes(items, sizes, budget)
    place = _cut(items, sizes, kept, budget)
    if place:
        sizes = [size if i >= place or i in kept else 0 for i, size in enumerate(sizes)]
        cuts = {seq: size for seq, size in cuts.items() if seq > items[place - 1].seq}
    allowed = budget.summary_tokens if place else 0
    if sum(sizes) + allowed > budget.tokens:
        rest = range(place, len(items))
        _truncate_outputs(
            items, sizes, list(rest), budget, sum(sizes) + allowed - budget.tokens, cuts
        )
    return _build_plan(items, place, kept, cuts, before, sum(sizes) + allowed)


def _build_plan(
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
        first=next((items[i] for i in _first_request(items) if i < place and i not in kept), None),
        cuts=tuple(sorted(cuts.items())),
        tokens_before=before,
        tokens_after=after,
    )


# ── what stays ──────────────────────────────────────────────────────────────────────────────


def role_of(item: StoredItem) -> str | None:
    """Return the role of a message, or None for a summary and for any other item."""
    if item.kind != "message" or item.turn_number == SUMMARY_TURN:
        return None
    return read_role(item.body).role


def _kept_indexes(
    items: Sequence[StoredItem], sizes: Sequence[int], budget: TokenBudget
) -> set[int]:
    """Return the indexes of the items that are always sent."""
    kept = {i for i in _first_request(items) if sizes[i] * _FIRST_REQUEST_SHARE <= budget.tokens}
    for place, item in enumerate(items):
        role = role_of(item)
        is_current = item.turn_number == budget.turn_number and not budget.is_whole
        is_standing = role in ("system", "developer") or item.kind == "configuration_update"
        if is_standing or (role == "user" and is_current):
            kept.add(place)
    return kept


def _first_request(items: Sequence[StoredItem]) -> list[int]:
    """Return the index of the user's first request, unless a summary before it quotes it."""
    for place, item in enumerate(items):
        if item.turn_number == SUMMARY_TURN:
            return []
        if role_of(item) == "user":
            return [place]
    return []


# ── where to cut ────────────────────────────────────────────────────────────────────────────


def whole_cuts(items: Sequence[StoredItem]) -> Iterator[int]:
    """Yield the indexes between items at which no unit is split, including the end."""
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
    items: Sequence[StoredItem], sizes: Sequence[int], kept: set[int], budget: TokenBudget
) -> int:
    """Return how many of the first items a summary replaces, or 0 if that saves nothing."""
    if budget.is_whole:
        return len(items) if _first_progress(items, kept) <= len(items) else 0
    left = sum(sizes) + budget.summary_tokens
    costs: dict[int, int] = {}
    for place in range(1, len(items)):
        if place - 1 not in kept:
            left -= sizes[place - 1]
        costs[place] = left
    first = _first_progress(items, kept)
    possible = [place for place in whole_cuts(items) if first <= place < len(items)]
    between = [p for p in possible if items[p].turn_number != items[p - 1].turn_number]
    for places in (between, possible):
        fitting = next((p for p in places if costs[p] <= budget.tokens), None)
        if fitting is not None:
            return fitting
    best = min(possible, key=lambda p: (costs[p], p), default=0)
    return best if best and costs[best] < sum(sizes) else 0


def _first_progress(items: Sequence[StoredItem], kept: set[int]) -> int:
    """Return the first cut that replaces more than an existing summary; past the end if none."""
    last_summary = max(
        (i for i, item in enumerate(items) if item.turn_number == SUMMARY_TURN), default=-1
    )
    replaced = (i for i in range(last_summary + 1, len(items)) if i not in kept)
    return next(replaced, len(items)) + 1


# ── shorter outputs ─────────────────────────────────────────────────────────────────────────


def _truncate_outputs(
    items: Sequence[StoredItem],
    sizes: list[int],
    places: Sequence[int],
    budget: TokenBudget,
    excess: int,
    cuts: dict[int, int],
) -> None:
    """Truncate outputs, oldest first, to save `excess` tokens; the newest is cut the least."""
    outputs = [place for place in places if items[place].kind in SHORT_KINDS]
    for place in outputs:
        if excess <= 0:
            return
        kept = 0
        if place == outputs[-1] and items[place].turn_number == budget.turn_number:
            fitting = sizes[place] - excess - 2 * MIN_GAIN
            kept = max(int(fitting * budget.scale.bytes_per_token), _MIN_LAST_OUTPUT)
        size = budget.scale.item(truncate_output(items[place], kept).body)
        gain = sizes[place] - size
        if gain >= MIN_GAIN:
            cuts[items[place].seq] = min(kept, cuts.get(items[place].seq, kept))
            sizes[place] = size
            excess -= gain
