"""Outputs that a request contains for calls that never ended, by the kind of call."""

from typing import Any

import msgspec

INTERRUPTED = "interrupted: this call did not return a result"
MAY_HAVE_RUN = "It may have taken effect; check before you call it again."
OUTCOME_UNKNOWN = (
    f"The outcome of this call is unknown: the gateway stopped while it ran. {MAY_HAVE_RUN}"
)
NOT_APPROVED = "The call was not run: it was not approved."
OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}
"""Calls that no server accepts without their output."""
OUTPUT_KINDS = frozenset(OUTPUT_OF.values())
_CALL_OF = {output: call for call, output in OUTPUT_OF.items()}
BLANK_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
    "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""An empty image: the output of a computer call must be an image."""


def is_interrupted_output(kind: str, call_id: str | None, body: bytes) -> bool:
    """Whether an item is the output that says a call was interrupted."""
    if kind not in OUTPUT_KINDS or call_id is None:
        return False
    return body == interrupted_output(_CALL_OF[kind], call_id)


def interrupted_output(kind: str, call_id: str, text: str = INTERRUPTED) -> bytes:
    """Return an output that says a call of this kind was interrupted."""
    fields: dict[str, Any] = {"output": text}
    if kind == "shell_call":
        fields = {"output": [{"stdout": "", "stderr": INTERRUPTED, "outcome": {"type": "timeout"}}]}
    elif kind == "apply_patch_call":
        fields = {"status": "failed", "output": INTERRUPTED}
    elif kind == "computer_call":
        fields = {"output": {"type": "computer_screenshot", "image_url": BLANK_PICTURE}}
    return msgspec.json.encode({"type": OUTPUT_OF[kind], "call_id": call_id, **fields})
