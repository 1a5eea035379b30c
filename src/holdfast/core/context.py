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


def project(items: Iterable[StoredItem]) -> list[bytes]:
    """Return the bodies of a valid request: pairs together, orphans mended, nothing rewritten."""
    listed = [item for item in items if not (item.is_partial and _is_opaque(item))]
    outputs: dict[str, list[StoredItem]] = {}
    for item in listed:
        if item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None:
            outputs.setdefault(item.call_id, []).append(item)
    shown: list[bytes] = []
    for index, item in enumerate(listed):
        if item.kind.endswith(OUTPUT_SUFFIX) and item.call_id is not None:
            continue
        if item.kind == "reasoning" and not _has_successor(listed, index):
            continue
        shown.append(item.body)
        if _is_call(item) and item.call_id is not None:
            waiting = outputs.get(item.call_id)
            shown.append(waiting.pop(0).body if waiting else _interrupted(item))
    return shown


def _is_opaque(item: StoredItem) -> bool:
    """Whether half an item is worth nothing: a call's arguments, reasoning without its seal."""
    return _is_call(item) or item.kind == "reasoning"


def _is_call(item: StoredItem) -> bool:
    return item.kind in _OUTPUT_OF and item.call_id is not None


def _has_successor(listed: list[StoredItem], index: int) -> bool:
    """Reasoning travels with the item it led to, of the same turn, or not at all."""
    if index + 1 >= len(listed):
        return False
    here, following = listed[index], listed[index + 1]
    return following.turn_number == here.turn_number and not following.kind.endswith(OUTPUT_SUFFIX)


def _interrupted(call: StoredItem) -> bytes:
    return msgspec.json.encode(
        {"type": _OUTPUT_OF[call.kind], "call_id": call.call_id, "output": INTERRUPTED}
    )
