"""Find the input that a provider refuses: the last messages, or earlier input without an answer.

A refusal of the whole request does not say which item caused it. Items that a model has answered
were accepted, so only items after the last answer can be the cause.
"""

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, item_value

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
    asked = input_from
    for item in takewhile(
        lambda item: _is_from_user(item) and not _is_instruction(item), reversed(own)
    ):
        asked = item.seq
    # Instructions are shown first, wherever they were given: sort by sequence number.
    earlier = sorted((i for i in history if i.seq < input_from), key=lambda item: item.seq)
    recent = list(takewhile(lambda item: not _is_from_model(item), reversed(earlier)))
    instructions = tuple(item.seq for item in reversed(recent) if _is_instruction(item))
    unanswered = [item for item in recent if not _is_instruction(item)]
    if unanswered:
        # A client may have sent the answer that it has; leave it out together with its question.
        unanswered += takewhile(_is_from_model, own)
    return RefusedInput(asked, tuple(sorted(item.seq for item in unanswered)), instructions)


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
