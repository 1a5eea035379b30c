"""Find the items that a provider refuses: the one it names, else the likeliest ones.

A refusal of the whole request does not say which item caused it. Items that a model has answered
were accepted, so only items after the last answer can be the cause.
"""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

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


class RefusedInput(msgspec.Struct, frozen=True):
    """The input of a run, divided by what a refusal may refer to."""

    first: int
    """The first item of the question: the messages, or the tool outputs, at the end."""
    unanswered: tuple[int, ...] = ()
    """Items of earlier turns that no model has answered yet; empty without a question of its
    own."""
    instructions: tuple[int, ...] = ()
    """Instructions of earlier turns that no model has followed yet."""


def find_refused_input(
    history: Sequence[StoredItem], input_from: int, input_upto: int
) -> RefusedInput:
    """Divide the input of a model call; the run's own input is `input_from` to `input_upto`.

    A run without input of its own repeats an earlier question. In that case no item counts as
    refused, so that the question can be asked again.
    """
    own = [item for item in history if input_from <= item.seq <= input_upto]
    if not own:
        return RefusedInput(input_from)
    outputs = list(takewhile(lambda item: item.kind.endswith(OUTPUT_SUFFIX), reversed(own)))
    if outputs:
        # An output cannot be sent without its call, so nothing before it can be left out.
        return RefusedInput(outputs[-1].seq)
    first = input_from
    for item in takewhile(
        lambda item: _is_from_user(item) and not _is_instruction(item), reversed(own)
    ):
        first = item.seq
    # Instructions are shown first, wherever they were given: sort by sequence number.
    earlier = sorted((i for i in history if i.seq < input_from), key=lambda item: item.seq)
    recent = list(takewhile(lambda item: not _is_from_model(item), reversed(earlier)))
    instructions = tuple(item.seq for item in reversed(recent) if _is_instruction(item))
    unanswered = [item for item in recent if not _is_instruction(item)]
    if unanswered:
        # A client may have sent the answer that it has; leave it out together with its question.
        unanswered += takewhile(_is_from_model, own)
    return RefusedInput(first, tuple(sorted(item.seq for item in unanswered)), instructions)


def _role(item: StoredItem) -> str | None:
    return item_value(item.body).get("role") if item.kind == "message" else None


def _is_from_user(item: StoredItem) -> bool:
    return item.kind == "message" and _role(item) != "assistant"


def _is_from_model(item: StoredItem) -> bool:
    """Whether a model produced an item; a summary stands for items that a model has answered."""
    if item.turn_number == 0:
        return True
    return not (_is_from_user(item) or item.kind.endswith(OUTPUT_SUFFIX))


def _is_instruction(item: StoredItem) -> bool:
    return _role(item) in _INSTRUCTION_ROLES
