"""Which fields of a request an agent supports: instructions, but no sampling parameters.

Sampling parameters are ignored, because no agent has them. A field that would change the meaning of
the answer is rejected.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, UnsupportedByUpstream

_REFUSED = ("logprobs", "top_logprobs", "audio", "functions", "prompt")


def check_fields(
    fields: Mapping[str, msgspec.Raw], chat_fields: Mapping[str, msgspec.Raw], upstream: str
) -> None:
    """Raise for fields that an agent cannot express."""
    all_fields = {**fields, **chat_fields}
    if _decode(all_fields.get("tools")):
        raise InvalidInput(
            f"tools: {upstream} is an agent with tools of its own; it takes none from a request",
            param="tools",
        )
    for name in _REFUSED:
        if _decode(all_fields.get(name)):
            raise UnsupportedByUpstream(name, upstream)
    if _decode(all_fields.get("n")) not in (None, 1):
        raise UnsupportedByUpstream("n", upstream)
    text = _decode(all_fields.get("text"))
    _check_format(text.get("format") if isinstance(text, dict) else None, "text.format", upstream)
    _check_format(_decode(all_fields.get("response_format")), "response_format", upstream)


def instructions_of(fields: Mapping[str, msgspec.Raw]) -> str:
    """Return the instructions of a turn."""
    instructions = _decode(fields.get("instructions"))
    return instructions if isinstance(instructions, str) else ""


def _check_format(value: Any, name: str, upstream: str) -> None:
    if isinstance(value, dict) and value.get("type") not in (None, "text"):
        raise UnsupportedByUpstream(name, upstream)


def _decode(value: msgspec.Raw | None) -> Any:
    return None if value is None else msgspec.json.decode(value)
