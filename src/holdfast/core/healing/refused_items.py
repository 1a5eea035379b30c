"""Find the items that a provider refuses: the one it names, else the likeliest ones.

A refusal of the whole request does not say which item caused it. Items that a model has answered
were accepted, so only items after its last answer can be the cause.
"""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import groupby, takewhile

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, item_value
from holdfast.core.projection.placeholders import has_media

_TOKENS = re.compile(r"https?://[^\s'\"<>]+|\bfile[-_][\w-]{3,}|'([^'\s]{6,})'|\"([^\"\s]{6,})\"")
_REMOTE_CONTENT = (b'"file_id"', b'"file_url"', b"http://", b"https://", b'"audio_id"')


def poison_candidates(
    history: Sequence[StoredItem],
    *,
    named: Collection[int] = (),
    message: str = "",
    turn_number: int = 0,
    quarantined: Collection[int] = (),
    is_only_named: bool = False,
) -> tuple[int, ...]:
    """Return the sequence numbers of the items to leave out next; empty when no guess is left.

    First come the items that the provider named, by index or in its message. Then, unless
    `is_only_named`, images and files of this turn, then those stored elsewhere, which may be gone,
    then all others.
    """
    tokens = [token.encode() for token in _quoted(message)]
    guesses: tuple[Callable[[StoredItem], bool], ...] = (
        lambda item: item.seq in named,
        lambda item: has_media(item) and any(token in item.body for token in tokens),
        lambda item: item.turn_number == turn_number and has_media(item),
        lambda item: has_media(item) and any(sign in item.body for sign in _REMOTE_CONTENT),
        has_media,
    )
    for is_suspect in guesses[:2] if is_only_named else guesses:
        candidates = tuple(
            item.seq for item in history if item.seq not in quarantined and is_suspect(item)
        )
        if candidates:
            return candidates
    return ()


def _quoted(message: str) -> list[str]:
    """Return what a refusal quotes: a URL, a file id, or anything between quotes."""
    quotations = [
        next(filter(None, match.groups()), match[0]) for match in _TOKENS.finditer(message)
    ]
    return [token.rstrip(".,;:)") for token in quotations]


_INSTRUCTION_ROLES = frozenset({"system", "developer"})


class Suspects(msgspec.Struct, frozen=True):
    """The items before a question that a refusal may be about: no model has answered them."""

    questions: tuple[int, ...] = ()
    """The question at the end of each turn, and what is left of an answer to it."""
    unanswered: tuple[int, ...] = ()
    """All of them, also instructions, histories, and texts that no model wrote."""


def find_question(own: Sequence[StoredItem]) -> int | None:
    """Return the first item of the question that an input ends with, or None without input.

    It is the tool outputs at the end, or else the messages.
    """
    asked = _asked_last(own) or own
    return asked[0].seq if asked else None


def find_suspects(
    history: Sequence[StoredItem], input_from: int, input_upto: int, *, answered: int
) -> Suspects:
    """Return what a refusal may be about; the run's own input is `input_from` to `input_upto`.

    Models have answered the items up to `answered`. A run without input of its own repeats the
    question of the last turn, so that counts as its own.
    """
    # Instructions are shown first, wherever they were given: sort by sequence number.
    listed = sorted((item for item in history if item.turn_number), key=lambda item: item.seq)
    own = [item for item in listed if input_from <= item.seq <= input_upto]
    if not own and listed:
        own = _turns(listed)[-1]
        input_from = own[0].seq
    needed = {item.call_id for item in own if _is_output(item)}
    earlier = [
        item
        for item in listed
        if answered < item.seq < input_from and (item.call_id is None or item.call_id not in needed)
    ]
    if not earlier:
        return Suspects()
    # A client may have sent the answer that it has; leave it out together with its question.
    answer = [item.seq for item in takewhile(_is_from_model, own)]
    questions = [item.seq for turn in _turns(earlier) for item in _question_and_answer(turn)]
    unanswered = (*(item.seq for item in earlier), *answer)
    return Suspects((*questions, *answer) if questions else (), unanswered)


def leave_out(
    history: Sequence[StoredItem], left_out: Collection[int]
) -> tuple[list[StoredItem], frozenset[int]]:
    """Return a history without some items, and the outputs among them that stay as placeholders.

    An output whose call stays must not look like one that never came.
    """
    calls = {
        item.call_id
        for item in history
        if item.call_id and not _is_output(item) and item.seq not in left_out
    }
    kept = frozenset(
        item.seq
        for item in history
        if item.seq in left_out and _is_output(item) and item.call_id in calls
    )
    return [item for item in history if item.seq not in left_out or item.seq in kept], kept


def _turns(items: Sequence[StoredItem]) -> list[list[StoredItem]]:
    """Return items in order as lists, one for each turn."""
    grouped = groupby(items, key=lambda item: (item.session_id, item.turn_number))
    return [list(turn) for _, turn in grouped]


def _question_and_answer(turn: Sequence[StoredItem]) -> Sequence[StoredItem]:
    """Return the question at the end of a turn with the answer behind it; empty without one."""
    answer = list(takewhile(_is_from_model, reversed(turn)))
    asked = _asked_last(turn[: len(turn) - len(answer)])
    return [*asked, *reversed(answer)] if asked else ()


def _asked_last(items: Sequence[StoredItem]) -> list[StoredItem]:
    """Return the tool outputs at the end, or else the messages."""
    outputs = list(takewhile(_is_output, reversed(items)))
    return (outputs or list(takewhile(_is_asked, reversed(items))))[::-1]


def _role(item: StoredItem) -> str | None:
    return item_value(item.body).get("role") if item.kind == "message" else None


def _is_output(item: StoredItem) -> bool:
    return item.kind.endswith(OUTPUT_SUFFIX)


def _is_asked(item: StoredItem) -> bool:
    """Whether an item is a message that is neither an answer nor an instruction."""
    return item.kind == "message" and _role(item) not in (_INSTRUCTION_ROLES | {"assistant"})


def _is_from_model(item: StoredItem) -> bool:
    """Whether an item is what models write: an answer, a call, reasoning."""
    if item.kind == "message":
        return _role(item) == "assistant"
    return not _is_output(item)
