"""Outputs of a client's tools that come without the history: which call each of them answers.

An output finds its call by id. One that was given before is not stored twice; one that answers
no call, or a call that was answered otherwise, is refused: there is nothing that it could mean.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.history.diff import LogEntry, SentItem
from holdfast.core.model.items import OUTPUT_SUFFIX


class SortedOutputs(msgspec.Struct, frozen=True):
    """What of a request is new, by index; `given` is the last output that the log has already."""

    new: tuple[int, ...]
    given: LogEntry | None = None


def sort_outputs(
    sent: Sequence[SentItem], log: Sequence[LogEntry], *, is_growing: bool = False
) -> SortedOutputs:
    """Hold the outputs of a request against the calls of the log; everything else is new.

    While the log `is_growing`, the call of an output may yet come.
    """
    answers = _answers(log)
    new: list[int] = []
    given: LogEntry | None = None
    for index, item in enumerate(sent):
        if not item.is_output or item.call_id is None:
            new.append(index)
            continue
        if item.call_id not in answers:
            if not is_growing:
                raise InvalidInput(f"no call has the id {item.call_id!r}", param="input")
            new.append(index)
            continue
        answer = answers[item.call_id]
        if answer is None:
            new.append(index)
        elif answer.fingerprint == item.fingerprint:
            given = answer
        else:
            raise InvalidInput(f"call {item.call_id!r} has another output already", param="input")
    return SortedOutputs(tuple(new), given)


def _answers(log: Sequence[LogEntry]) -> dict[str, LogEntry | None]:
    """Return the output of the latest call of each id, or None where it has none yet."""
    answers: dict[str, LogEntry | None] = {}
    for entry in log:
        if entry.call_id is None:
            continue
        if not entry.kind.endswith(OUTPUT_SUFFIX):
            answers[entry.call_id] = None
        elif entry.call_id in answers:
            answers[entry.call_id] = entry
    return answers
