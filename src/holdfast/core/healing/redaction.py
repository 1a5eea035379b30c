"""Remove secrets from texts of other servers before they are logged or passed on."""

import re

REDACTED = "[redacted]"
MIN_KEY_LENGTH = 8
"""Shorter keys are placeholders such as `none` or `local`, not secrets."""
TAIL_LENGTH = 8
"""Servers mask a key except for its end, so the end of a long key is redacted too."""
MAX_PASSES = 16
"""Redacting one secret may reveal the next; more passes than this are only needed by crafted
text."""

_SECRETS = (
    # Keys by their vendors' prefixes; servers put stars into a masked key.
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|ghs)[-_][A-Za-z0-9_\-*.]{8,}"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{20,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}\.?[A-Za-z0-9_\-]*"),
)
_NAMED = re.compile(
    r"""(\b(?:bearer|basic)\s+|\b(?:api[-_ ]?key|access[-_]token|authorization)["']?\s*[:=]\s*"""
    r"""["']?|[?&](?:key|api[-_]?key|token)=)(?!bearer\b|basic\b)"""
    # Atomic: a placeholder counts as one character, so that it is never redacted in part.
    r"""((?>\[redacted\]|[^\s"'&,;)}\]]){6,})""",
    re.IGNORECASE,
)
"""A secret that follows a word such as `bearer` or `api_key`."""
_CODE = re.compile(r"[\w.:/-]{1,64}")
_LOGIN = re.compile(r"(://[^/\s:@]{1,200}:)[^/\s@]{1,200}(@)")


def redact(text: str, *known_secrets: str | None) -> str:
    """Return a text without the known secrets and without anything that looks like one.

    Redacting a redacted text changes nothing.
    """
    secrets = [
        secret
        for secret in known_secrets
        if secret and len(secret) >= MIN_KEY_LENGTH and secret not in REDACTED
    ]
    secrets += [secret[-TAIL_LENGTH:] for secret in secrets if _has_secret_tail(secret)]
    for _ in range(MAX_PASSES):
        before = text
        text = _redact_once(text, secrets)
        if text == before:
            break
    return text


def plain_code(code: str | None) -> str | None:
    """Return a provider's error code if it looks like one; other values may contain anything."""
    return code if code and _CODE.fullmatch(code) else None


def _has_secret_tail(key: str) -> bool:
    """Return whether the end of a key is not a word, so that ordinary text does not contain it."""
    tail = key[-TAIL_LENGTH:]
    return len(key) >= 2 * TAIL_LENGTH and not tail.isalpha() and tail not in REDACTED


def _redact_once(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    text = _LOGIN.sub(rf"\1{REDACTED}\2", text)
    text = _NAMED.sub(_named, text)
    for pattern in _SECRETS:
        text = pattern.sub(REDACTED, text)
    return text


def _named(match: re.Match[str]) -> str:
    # "no bearer authentication" and "api key: required" contain no secret.
    is_word = match[2].isalpha() and (match[2].islower() or match[2].istitle())
    return match[0] if is_word else match[1] + REDACTED
