"""Classify the failures of providers: by code first, by text second, by status last.

Real servers send some failures without a code, and others with meaningless codes, so the texts
matter.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.core.errors import REQUEST_STATUSES, FailureClass, ProviderFailure
from holdfast.core.healing.redaction import redact
from holdfast.providers.retry_after import retry_after

MAX_MESSAGE = 4000
MAX_LOCATION = 300
UPSTREAM_AUTH_FAILED = "upstream_auth_failed"

_REFUSED_PROMPT_CODES = frozenset(
    {
        # OpenAI
        "invalid_prompt", "content_policy_violation", "moderation_blocked",
        "cyber_policy_violation", "bio_policy_violation",
        # Azure, which nests the more precise code
        "content_filter", "ResponsibleAIPolicyViolation", "ContentFiltered",
        # Gemini's block reasons
        "PROHIBITED_CONTENT", "SAFETY", "BLOCKLIST", "RECITATION", "SPII",
        # Mistral, and gateways with guardrails
        "guardrail_violation", "guardrails_violation", "input_moderation_failed",
        "data_inspection_failed", "DataInspectionFailed", "censorship_blocked",
    }
)  # fmt: skip
_BY_CODE: dict[str, FailureClass] = {
    "previous_response_not_found": "stale_state",
    "invalid_encrypted_content": "foreign_opaque",
    "conversation_locked": "busy",
    "context_length_exceeded": "overflow",
    "string_above_max_length": "shape",
    "insufficient_quota": "terminal",
    "rate_limit_exceeded": "transient",
    "server_error": "transient",
    "overloaded_error": "transient",
    "invalid_api_key": "terminal",
    UPSTREAM_AUTH_FAILED: "terminal",
    "model_not_found": "terminal",
    **dict.fromkeys(
        (
            "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url",
            "image_too_large", "image_too_small", "image_parse_error", "invalid_image_mode",
            "image_file_too_large", "unsupported_image_media_type", "empty_image_file",
            "failed_to_download_image", "image_file_not_found", "image_content_policy_violation",
            "invalid_file", "file_not_found", "unsupported_file",
        ),
        "poison",
    ),
}  # fmt: skip

_PLACE = re.compile(r"\b(?:input|messages)(?:\.|\[|\.\[)(\d{1,6})\b")
_CONTENT = re.compile(r"\.(?:text|output|arguments|content|image_url|file_data|input)\b")
_BY_STATUS: dict[int, FailureClass] = {409: "busy", 413: "overflow"}
_TOO_LARGE = re.compile(r"request too large for", re.IGNORECASE)
OVERFLOW_CODE = "context_length_exceeded"
_STATE_PARAMS = frozenset({"previous_response_id", "conversation"})
_UNUSABLE_ANSWERS = frozenset(
    {
        "upstream_broken_answer", "upstream_truncated", "upstream_gave_up", "upstream_unfinished",
        "upstream_cancelled", "upstream_answer_too_long",
    }
)  # fmt: skip
"""Codes of answers that began with a success and cannot be used."""
_STATE_STATUSES = frozenset({400, 404, 422})
_REFUSAL_STATUSES = frozenset({None, 400, 403, 413, 422, 451})


class _Error(msgspec.Struct):
    message: Any = None
    type: Any = None
    param: Any = None
    code: Any = None
    status: Any = None
    details: Any = None
    innererror: Any = None
    metadata: Any = None


def classify(
    *,
    status: int | None,
    code: str | None = None,
    kind: str | None = None,
    message: str = "",
    param: str | None = None,
) -> FailureClass:
    """Return the class of a failure; `status` is None for one inside a stream."""
    if code == "string_above_max_length" and _CONTENT.search(param or message):
        return "poison"  # the content is too long, not an id or a name
    if _TOO_LARGE.match(message):
        return "overflow"  # exceeds the account's limit per minute: a shorter request helps
    if is_prompt_refusal(status, code, message):
        return "terminal"
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    item_class = class_of(status, message)
    if item_class is not None:
        # Gemini sends its quota text together with a time to wait: it is a rate limit.
        return "transient" if kind == "RESOURCE_EXHAUSTED" else item_class
    if status in REQUEST_STATUSES and names_item(param, message) is not None:
        # Only one item is at fault, whatever the text says: the others can be sent without it.
        return "poison"
    code_class = _BY_CODE.get(kind) if kind is not None else None
    if code_class is not None and not (code_class == "transient" and status in REQUEST_STATUSES):
        return code_class  # a rejected request is never transient, whatever type its error has
    return _by_status(status, kind, param)


def names_item(param: str | None, message: str) -> int | None:
    """Return the index of the item that a refusal names, in the request's own list, or None."""
    for text in (param or "", message):
        match = _PLACE.search(text)
        if match is not None:
            return int(match[1])
    return None


def is_prompt_refusal(status: int | None, code: str | None, message: str) -> bool:
    """Return whether a content filter or a policy refused the prompt.

    A refused image does not count, because healing replaces it. A 403 must name a filter, because
    firewalls and missing permissions cause 403 as well.
    """
    if code is not None and code.startswith("image"):
        return False
    if code is not None and code in _REFUSED_PROMPT_CODES:
        return True
    if status not in _REFUSAL_STATUSES or (status == 403 and not _names_filter(message)):
        return False
    if _is_refusal_text(message) is None or _is_media(message):
        return False
    return _is_about_account(message) is None


def _with_suspicion(failure: ProviderFailure, code: str | None) -> ProviderFailure:
    """Return a failure with what it says about the input; `code` is the provider's own.

    Words never decide that.
    """
    failure.refuses_content = code in _REFUSED_PROMPT_CODES or code == OVERFLOW_CODE
    is_elsewhere = failure.status == 429 or failure.provider_code == UPSTREAM_AUTH_FAILED
    failure.may_fail_on_input = failure.provider_status in (200, 500) and not is_elsewhere
    return failure


def _by_status(status: int | None, kind: str | None, param: str | None) -> FailureClass:
    if status is None:
        return "terminal" if kind == "invalid_request_error" else "transient"
    if param in _STATE_PARAMS and status in _STATE_STATUSES:
        return "stale_state"
    if status in (408, 425, 429) or status >= 500:
        return "transient"
    return _BY_STATUS.get(status, "terminal")


def failure_of(
    status: int, headers: Mapping[str, str], body: bytes, *, names_state: bool = False
) -> ProviderFailure:
    """Return a provider's error response as a failure, with its own message.

    `names_state` is True if the request named stored state: a refusal that names no other cause may
    be about that, whatever its message.
    """
    error = _read(body)
    code, kind = _text(error.code), _text(error.type) or _text(error.status)
    inner = _text(error.innererror.get("code")) if isinstance(error.innererror, dict) else None
    if inner in _REFUSED_PROMPT_CODES and code not in _REFUSED_PROMPT_CODES:
        code = inner
    if isinstance(error.metadata, dict) and "flagged_input" in error.metadata:
        code = "moderation_blocked"  # OpenRouter quotes the input: use this code, not the text
    message = _text(error.message) or _plain(body) or f"the upstream answered with status {status}"
    param = _text(error.param)
    failure_class = classify(status=status, code=code, kind=kind, message=message, param=param)
    is_refusal = is_prompt_refusal(status, code, message)
    if failure_class == "terminal" and names_state and not is_refusal:
        failure_class = "stale_state" if _may_be_about_state(status, code, param) else failure_class
    is_unauthorized = status in (401, 403) and not is_refusal
    failure = ProviderFailure(
        redact(message[:MAX_MESSAGE]),
        failure_class=failure_class,
        # The gateway's key was refused, not the caller's: report a fault of the gateway.
        status=502 if is_unauthorized else 400 if is_refusal and status < 500 else status,
        provider_code=_client_code(failure_class, code, status if is_unauthorized else None),
        provider_type=_text(error.type),
        param=param,
        retry_after=retry_after(headers, error.details, message),
    )
    failure.provider_status = status
    _with_suspicion(failure, code)
    target = redirect_target(status, headers)
    if target is not None:
        failure.message += f" (the upstream redirects to {target}: set its `url` to that address)"
        failure.args = (failure.message,)
    failure.is_missing_path = status in (404, 405) and not has_error(body)
    failure.is_about_bytes = (
        failure_class == "overflow"
        and status == 413
        and code not in _BY_CODE
        and not _names_window(message)
    )
    return failure


def redirect_target(status: int, headers: Mapping[str, str]) -> str | None:
    """Return where a response redirects to, without a query, which may hold a key."""
    location = headers.get("location", "") if 300 <= status < 400 else ""
    return redact(location.partition("?")[0][:MAX_LOCATION]) or None


def name_missing_path(failure: ProviderFailure, path: str, api: str, other_api: str) -> None:
    """Tell in a failure that the server has nothing at a path, and what to do about that."""
    if not failure.is_missing_path:
        return
    remedy = f'set its `api` to "auto" or "{other_api}"'
    if api == "auto":
        remedy = "the next turn asks the server what it has"
    failure.message += f" (the upstream has no {path} here: {remedy}, or correct its `url`)"
    failure.args = (failure.message,)


def has_error(body: bytes) -> bool:
    """Return whether a body is an error of an API, rather than of what serves its paths."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    value = value[0] if isinstance(value, list) and value else value
    return isinstance(value, dict) and bool(value.get("error") or value.get("object") == "error")


def _may_be_about_state(status: int, code: str | None, param: str | None) -> bool:
    is_elsewhere = param is not None and not param.startswith(("input", "messages"))
    return status in _STATE_STATUSES and code not in _BY_CODE and not is_elsewhere


def _client_code(
    failure_class: FailureClass, code: str | None, auth_status: int | None
) -> str | None:
    """Return the code for clients; `auth_status` is 401 or 403 if the upstream rejected our key."""
    if failure_class == "overflow" and (code is None or code.isdecimal()):
        return OVERFLOW_CODE
    if auth_status == 401 or code == "invalid_api_key":
        # The gateway's key, not the client's: the provider's code would mislead the client.
        return UPSTREAM_AUTH_FAILED
    return code or (UPSTREAM_AUTH_FAILED if auth_status == 403 else None)


def failure_in_stream(error: Any) -> ProviderFailure:
    """Return an error inside a stream, nested or flat, as a failure."""
    fields = error if isinstance(error, dict) else {}
    code, kind = _text(fields.get("code")), _text(fields.get("type"))
    message = _text(fields.get("message")) or "the upstream ended its stream with an error"
    kind = None if kind == "error" else kind
    failure_class = classify(status=None, code=code, kind=kind, message=message)
    failure = ProviderFailure(
        redact(message[:MAX_MESSAGE]),
        failure_class=failure_class,
        status=_status_in_stream(failure_class, code, kind, message),
        provider_code=UPSTREAM_AUTH_FAILED if code == "invalid_api_key" else code,
        provider_type=kind,
        param=_text(fields.get("param")),
        retry_after=retry_after({}, fields.get("details"), message),
    )
    failure.provider_status = 200  # the stream had begun
    return _with_suspicion(failure, code)


def _status_in_stream(
    failure_class: FailureClass, code: str | None, kind: str | None, message: str
) -> int:
    """Return the status that a failure would have had outside a stream."""
    if (
        failure_class == "overflow"
        or kind == "invalid_request_error"
        or is_prompt_refusal(None, code, message)
    ):
        return 400
    return 429 if code in ("rate_limit_exceeded", "insufficient_quota") else 502


def broken(message: str, code: str, *, status: int = 502) -> ProviderFailure:
    """Return a failure of the connection or the response, which says nothing about the request."""
    failure = ProviderFailure(
        message, failure_class="transient", status=status, provider_code=code,
        provider_type="server_error",
    )  # fmt: skip
    failure.may_fail_on_input = code in _UNUSABLE_ANSWERS
    return failure


def _read(body: bytes) -> _Error:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Error()
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return _Error()
    error = value.get("error", value)
    if isinstance(error, str):
        return _Error(message=error, type=value.get("type"), code=value.get("code"))
    if not isinstance(error, dict):
        return _Error(message=_join_details(value.get("detail")) or value.get("message"))
    if "message" not in error and "detail" in error:
        return _Error(message=_join_details(error["detail"]))
    return msgspec.convert({k: v for k, v in error.items() if isinstance(k, str)}, _Error)


def _join_details(detail: Any) -> Any:
    """Return the errors of a validating server as one text."""
    if not isinstance(detail, list):
        return detail
    findings = [finding for finding in detail if isinstance(finding, dict)]
    return "; ".join(
        f"{'.'.join(map(str, place))}: {finding.get('msg')}"
        if isinstance(place := finding.get("loc"), list)
        else str(finding.get("msg"))
        for finding in findings
    )


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return _excerpt(value) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _excerpt(text: str) -> str:
    """Return the beginning and the end of a long text, which are all that is searched.

    A server may repeat the whole input in its error. A search in megabytes would stop all turns.
    """
    if len(text) <= 2 * MAX_MESSAGE:
        return text
    return f"{text[:MAX_MESSAGE]} {text[-MAX_MESSAGE:]}"


def _plain(body: bytes) -> str:
    text = body[:MAX_MESSAGE].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) else text


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
    (r"reasoning_content.{0,80}(unsupported|not (supported|permitted|allowed))", "shape"),
    (r"(unsupported|unexpected|not permitted|not allowed).{0,80}reasoning_content", "shape"),
    (r"exceeded your current quota", "terminal"),
)
_POLICIES = r"(polic(y|ies)|guidelines?|practices?|settings?|rules?|system|reasons?|checks?)"
_FILTERS = (
    r"(content filter|moderation|guardrails?|prohibited content|model armor|data inspection"
    rf"|(content|usage|safety|responsible ai)[ _](safety |filtering |management )?{_POLICIES}"
    r"|content safety|safety_check)"
)
_REFUSAL: tuple[str, ...] = (
    r"prompt was flagged|flagged (as|for) potentially violating",
    rf"violat\w+ .{{0,40}}{_FILTERS}",
    r"content (management|filtering|filter|moderation|safety) (policy|policies|system|rules|check)",
    rf"(blocked|filtered|rejected|refused|flagged) (by|due to|because of|for) .{{0,40}}{_FILTERS}",
    r"(prompt|input|request|response|candidate) (was |is |has been )?(blocked|filtered|flagged)\b",
    r"content was (blocked|filtered|flagged)\b|limited access to this content|sensitive words",
    r"rejected (as a result of|by) (our|the) safety system|responsible ai polic",
    r"\bprohibited[_ ]content\b|data inspection failed|inappropriate content",
    r"guardrails? violation|requires moderation",
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


def _finder(*patterns: str) -> Callable[[str], re.Match[str] | None]:
    """Return a search for patterns, which are compiled when first used, not at start."""
    return partial(re.search, "|".join(patterns), flags=re.IGNORECASE | re.DOTALL)


_is_length = _finder(*_LENGTH)
_is_tokens = _finder(*_TOKENS)
_is_media = _finder(*_MEDIA)
_is_media_for_sure = _finder(r"image input|identify image|mmproj")
_is_refusal_text = _finder(*_REFUSAL)
_names_filter = _finder(_FILTERS)
_is_about_account = _finder(
    r"\b(account|access|organi[sz]ation|project|subscription) (was|is|has been|were)\b"
)
_is_timeout = _finder(r"deadline|cancell?ed|timed? ?out")
"""Servers written in Go use the word `context` for cancellations and deadlines."""
_names_output_limit = _finder(r"max_\w*tokens|completion tokens|output tokens")
"""The output limit is a parameter of the request, not a problem of the history."""
_names_tool_or_format = _finder(r"\b(tools?|functions?|schema|response_format|parameter)\b")
_names_window = _finder(r"context|tokens?\b|prompt is too long")
"""A proxy that limits the bytes of a body mentions neither tokens nor a context window."""
_MEDIA_STATUSES = frozenset({400, 404, 413, 415, 422, None})


def class_of(status: int | None, message: str) -> FailureClass | None:
    """Return the failure class that a server's message indicates, or None if it is unknown."""
    for pattern, failure_class in _KNOWN:
        if re.search(pattern, message, re.IGNORECASE):
            return failure_class
    if status != 429 and _is_too_long(message):
        return "overflow"
    if _is_media_for_sure(message):
        return "poison"
    # A server error may be about one of the server's own files.
    if status in _MEDIA_STATUSES and _is_media(message) and not _names_tool_or_format(message):
        return "poison"
    return None


def _is_too_long(message: str) -> bool:
    if _is_timeout(message):
        return False
    if _is_length(message):
        return True
    return _is_tokens(message) is not None and not _names_output_limit(message)
