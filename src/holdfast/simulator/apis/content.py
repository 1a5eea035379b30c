"""Reading what a message says, whichever way its content is written."""

from typing import Any

_TEXT_KEYS = ("text", "refusal", "input_text")


def text_of(content: Any) -> str:
    """Return the text of a string, of a list of parts, or of one part."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    if isinstance(content, dict):
        for key in _TEXT_KEYS:
            if isinstance(content.get(key), str):
                return str(content[key])
        return text_of(content.get("content"))
    return ""
