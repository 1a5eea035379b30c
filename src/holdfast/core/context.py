"""From a transcript to what a model may be shown: every call with its output, every output once.

The log is never changed for this. A call that never ended gets a synthetic output here; a late
one takes its place, at its call.
"""

from collections.abc import Iterable

import msgspec

from holdfast.core.items import OUTPUT_SUFFIX, StoredItem

INTERRUPTED = "interrupted: this call did not return a result"
_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}


class _Shown(msgspec.Struct, frozen=True, gc=False):
    """One item of a request: where it stands in the log, and the call that it answers, if any."""

    body: bytes
    seq: int | None
    call: StoredItem | None = None


def project(items: Iterable[StoredItem]) -> list[bytes]:
    """Return the bodies of a valid request: pairs together, orphans mended, nothing rewritten."""
    return [shown.body for shown in _show(items)]


def continue_after(items: Iterable[StoredItem], covers_seq: int) -> list[bytes] | None:
    """Return what is new to somebody who was shown everything up to `covers_seq`.

    None when it cannot be told by adding alone: an output came late, in the place of one that was
    made up and shown.
    """
    listed = list(items)
    covered = [item.turn_number for item in listed if item.seq <= covers_seq]
    last_turn = covered[-1] if covered else None
    new: list[bytes] = []
    for shown in _show(listed):
        if shown.seq is not None and shown.seq <= covers_seq:
            continue
        call = shown.call
        if call is None or call.seq > covers_seq or call.turn_number == last_turn:
            new.append(shown.body)
        elif shown.seq is not None:
            # A call of an earlier turn was answered, if only by a made-up output, when it passed.
            return None
    return new


def _show(items: Iterable[StoredItem]) -> list[_Shown]:
    listed = [item for item in items if not (item.is_partial and _is_opaque(item))]
    outputs: dict[str, list[StoredItem]] = {}
    for item in listed:
        if item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None:
            outputs.setdefault(item.call_id, []).append(item)
    shown: list[_Shown] = []
    calls: list[StoredItem] = []
    for index, item in enumerate(listed):
        if _is_call(item):
            # Calls made in one breath stay together, and so do their outputs behind them.
            calls.append(item)
            shown.append(_Shown(item.body, item.seq))
            continue
        shown += _answer(calls, outputs)
        calls.clear()
        is_output = item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None
        if not is_output and (item.kind != "reasoning" or _has_successor(listed, index)):
            shown.append(_Shown(item.body, item.seq))
    return shown + _answer(calls, outputs)


def _answer(calls: list[StoredItem], outputs: dict[str, list[StoredItem]]) -> list[_Shown]:
    answers: list[_Shown] = []
    for call in calls:
        waiting = outputs.get(call.call_id or "")
        if waiting:
            output = waiting.pop(0)
            answers.append(_Shown(output.body, output.seq, call))
        else:
            answers.append(_Shown(_interrupted(call), None, call))
    return answers


def _is_opaque(item: StoredItem) -> bool:
    """Whether half an item is worth nothing: a call's arguments, reasoning without its seal."""
    return _is_call(item) or item.kind == "reasoning"


def _is_call(item: StoredItem) -> bool:
    return item.kind in _OUTPUT_OF and item.call_id is not None


def _has_successor(listed: list[StoredItem], index: int) -> bool:
    """Reasoning travels with the item it led to, of the same turn, or not at all."""
    here = listed[index]
    for following in listed[index + 1 :]:
        if following.turn_number != here.turn_number:
            return False
        if following.kind != "reasoning":
            return not following.kind.endswith(OUTPUT_SUFFIX)
    return False


def _interrupted(call: StoredItem) -> bytes:
    return msgspec.json.encode(
        {"type": _OUTPUT_OF[call.kind], "call_id": call.call_id, "output": INTERRUPTED}
    )
