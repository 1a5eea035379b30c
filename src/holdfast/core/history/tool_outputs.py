"""Assigns tool outputs that come without a history to their calls.

An output finds its call by id. One that is stored already is not stored twice; one without a call,
or for a call with another output, is rejected.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.history.diff import LogEntry, SentItem
from holdfast.core.model.items import OUTPUT_SUFFIX


class SortedOutputs(msgspec.Struct, frozen=True):
    """The indexes of a request's new items, and the last output that the log already has."""

    new: tuple[int, ...]
    given: LogEntry | None = None


def sort_outputs(
    sent: Sequence[SentItem], log: Sequence[LogEntry], *, is_growing: bool = False
) -> SortedOutputs:
    """Compare the outputs of a request with the calls of the log; everything else is new.

    While the log `is_growing`, the call of an output may still be added.
    """
    outputs = _outputs(log)
    new: list[int] = []
    given: LogEntry | None = None
    for index, item in enumerate(sent):
        if not item.is_output or item.call_id is None:
            new.append(index)
            continue
        if item.call_id not in outputs:
            if not is_growing:
                raise InvalidInput(f"no tool call has the id {item.call_id!r}", param="input")
            new.append(index)
            continue
        known = outputs[item.call_id]
        if known is None:
            new.append(index)
        elif known.fingerprint == item.fingerprint:
            given = known
        else:
            raise InvalidInput(
                f"tool call {item.call_id!r} has another output already", param="input"
            )
    return SortedOutputs(tuple(new), given)


def _outputs(log: Sequence[LogEntry]) -> dict[str, LogEntry | None]:
    """Return the output of the latest call of each id, or None for a call without one."""
    outputs: dict[str, LogEntry | None] = {}
    for entry in log:
        if entry.call_id is None:
            continue
        if not entry.kind.endswith(OUTPUT_SUFFIX):
            outputs[entry.call_id] = None
        elif entry.call_id in outputs:
            outputs[entry.call_id] = entry
    return outputs
