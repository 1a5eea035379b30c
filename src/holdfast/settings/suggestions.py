"""Suggestions for names that are no settings: what the writer may have meant."""

from collections.abc import Collection

PREFIX = "HOLDFAST_"
MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.75
_SYNONYMS = {
    "DB": "STORE", "DATABASE": "STORE", "DSN": "STORE", "BIND": "HOST", "ADDRESS": "HOST",
    "TRACING": "OTEL", "LOGGING": "LOG", "LOGLEVEL": "LOG_LEVEL", "LOGFORMAT": "LOG_FORMAT",
}  # fmt: skip
"""Names in other programs for Holdfast's names."""
_FIRST = {"STORE": "STORE_URL", "UPSTREAM": "UPSTREAM_URL", "KEY": "API_KEY"}
"""The field that is meant where only a section is named."""


def suggest_variables(name: str, known: Collection[str]) -> list[str]:
    """Return the variables that may be meant, the nearest first; at most three."""
    import difflib

    names = {variable.removeprefix(PREFIX): variable for variable in sorted(known)}
    words = [_SYNONYMS.get(word, word) for word in name.removeprefix(PREFIX).split("_")]
    suffix = "_".join(words)
    suffix = _FIRST.get(suffix, suffix)
    if suffix in names:
        return [names[suffix]]
    matches = (
        [candidate for candidate in names if candidate.endswith(f"_{suffix}")]
        or [candidate for candidate in names if candidate.startswith(f"{suffix}_")]
        or difflib.get_close_matches(suffix, names, 1, cutoff=MIN_SIMILARITY)
        or [candidate for candidate in names if suffix.startswith(f"{candidate}_")]
    )
    return [names[candidate] for candidate in matches[:MAX_SUGGESTIONS]]
