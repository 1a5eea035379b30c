"""Secrets in other people's words: what a server says of a key is passed on without the key."""

import re

HIDDEN = "[redacted]"
LEAST_KEY = 8
"""Shorter keys of an upstream are words that mean nothing: `none`, `local`."""

_SECRETS = (
    # Keys by the prefixes of their makers; a key that was masked by its server has stars in it.
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|ghs)[-_][A-Za-z0-9_\-*.]{8,}"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{20,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}\.?[A-Za-z0-9_\-]*"),
)
_NAMED = re.compile(
    r"""(\b(?:bearer|basic)\s+|\b(?:api[-_ ]?key|access[-_]token|authorization)["']?\s*[:=]\s*"""
    r"""["']?|[?&](?:key|api[-_]?key|token)=)(?!bearer\b|basic\b)([^\s"'&,;)}\]]{6,})""",
    re.IGNORECASE,
)
"""A secret that is introduced as one: by the word for it, not by its own looks."""
_LOGIN = re.compile(r"(://[^/\s:@]{1,200}:)[^/\s@]{1,200}(@)")


def redact(text: str, *known: str | None) -> str:
    """Return a text without anything that looks like a secret, or is one of those known."""
    for secret in known:
        if secret and len(secret) >= LEAST_KEY:
            text = text.replace(secret, HIDDEN)
    text = _LOGIN.sub(rf"\1{HIDDEN}\2", text)
    text = _NAMED.sub(_named, text)
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    return text


def _named(found: re.Match[str]) -> str:
    # "no bearer authentication" and "api key: required" say nothing secret.
    is_word = found[2].isalpha() and (found[2].islower() or found[2].istitle())
    return found[0] if is_word else found[1] + HIDDEN
