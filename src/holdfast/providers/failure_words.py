"""What servers say when they refuse: the words by which a failure's class is known.

Words that one server is known to use come first; below them, for each class, what any server would
have to say of it in some form.
"""

import re

from holdfast.core.errors import FailureClass

_KNOWN: tuple[tuple[str, FailureClass], ...] = (
    (r"previous[_ ]response", "stale_state"),
    (r"item with id .+ not found", "stale_state"),
    (r"conversation with id .+ not found", "stale_state"),
    (r"no conversation found with session id", "stale_state"),
    (r"invalid `?signature`? in `?thinking`?", "foreign_opaque"),
    (r"`?thinking`? or `?redacted_thinking`? blocks .*cannot be modified", "foreign_opaque"),
    (r"thought signature is not valid", "foreign_opaque"),
    (r"another (process|request) is currently", "busy"),
    (r"without its required following item", "shape"),
    (r"no tool output found for", "shape"),
    (r"no tool call found for", "shape"),
    (r"duplicate item found", "shape"),
    (r"must be followed by tool messages", "shape"),
    (r"must be a response to a prece(e)?ding message with", "shape"),
    (r"tool_use`? ids (were found without|must be unique)", "shape"),
    (r"unexpected `?tool_use_id`? found", "shape"),
    (r"roles must alternate|alternate between", "shape"),
    (r"unexpected role '?\w+'? after role|expected last role", "shape"),
    (r"system (messages?|role|prompt) .{0,40}(beginning|start|first|not supported)", "shape"),
    (r"encrypted[_ ](content|reasoning)|'reasoning'|reasoning items?\b", "foreign_opaque"),
    (r"\bResponseReasoningItem\b", "foreign_opaque"),
    (r"exceeded your current quota", "terminal"),
)
_LENGTH: tuple[str, ...] = (
    r"(exceed\w*|longer|larger|overflows?|over|reached)\b.{0,60}\bcontext\b",
    r"\bcontext\b.{0,40}\b(exceed\w*|overflow\w*)",
    r"\bmaximum context length|context length of only",
    r"\b(input|prompt|request|message)s?\b.{0,20}\btoo (long|large)\b",
    r"\b(input|prompt|request|message)s?\b.{0,30}\bexceeds?\b.{0,20}\b(max\w*|limit|length)\b",
    r"\b(prompt|input) length\b",
    r"longer than the (model|maximum|max)\b",
    r"\breduce the (length|size) of (the|your) (message|prompt|input)",
    r"`inputs`",
)
_TOKENS: tuple[str, ...] = (
    r"\btokens?\b.{0,80}\b(exceed\w*|at most|less than|too (long|large))",
    r"\b(exceed\w*|less than|too many)\b.{0,60}\btokens?\b",
)
_MEDIA: tuple[str, ...] = (
    r"\b(images?|image_url|input_image|input_file|pictures?|pdf|mmproj|mime type|media type)\b",
    r"\bfile (type|inputs?|data)\b",
    r"\bfile you (provided|uploaded)",
    r"\bcontent ?part",
    r"(while|failed to|could not|unable to) (download|fetch)",
    r"(client error|not found|forbidden).{0,40}\burl\b",
    r"no such file object",
    r"\bfiles?\b.{0,80} (has expired|(was |were |is )?not found|does not exist)",
    r"\bfile not found\b",
)


def _any(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)


_BY_TEXT = tuple((re.compile(words, re.IGNORECASE), kind) for words, kind in _KNOWN)
_is_length = _any(_LENGTH).search
_is_tokens = _any(_TOKENS).search
_is_media = _any(_MEDIA).search
_is_media_for_sure = re.compile(r"image input|identify image|mmproj", re.IGNORECASE).search
_is_late = re.compile(r"deadline|cancell?ed|timed? ?out", re.IGNORECASE).search
"""A `context` is what carries a time limit in some servers' language."""
_names_answer = re.compile(r"max_\w*tokens|completion tokens|output tokens", re.IGNORECASE).search
"""How long the answer may be is the client's wish, and no fault of the history."""
_names_wishes = re.compile(
    r"\b(tools?|functions?|schema|response_format|parameter)\b", re.IGNORECASE
).search
_REFUSED = frozenset({400, 404, 413, 415, 422, None})


def class_of(status: int | None, message: str) -> FailureClass | None:
    """Return what a server's words tell of a failure, if anything."""
    for pattern, found in _BY_TEXT:
        if pattern.search(message):
            return found
    if status != 429 and _is_too_long(message):
        return "overflow"
    if _is_media_for_sure(message):
        return "poison"
    # A server that breaks may have failed to fetch something of its own.
    if status in _REFUSED and _is_media(message) and not _names_wishes(message):
        return "poison"
    return None


def _is_too_long(message: str) -> bool:
    if _is_late(message):
        return False
    if _is_length(message):
        return True
    return _is_tokens(message) is not None and not _names_answer(message)
