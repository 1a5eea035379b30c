"""Suggestions for names that are no settings: what the writer may have meant."""

from collections.abc import Collection

PREFIX = "HOLDFAST_"
MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.75
_SYNONYMS = {
    "DB": "STORE", "DATABASE": "STORE", "DSN": "STORE", "BIND": "HOST", "ADDRESS": "HOST",
    "TRACING": "OTEL", "LOGGING": "LOG", "LOGLEVEL": "LOG_LEVEL", "LOGFORMAT": "LOG_FORMAT",
}  # fmt: skip
"""Words of other programs for words of ours."""
_FIRST = {"STORE": "STORE_URL", "UPSTREAM": "UPSTREAM_URL", "KEY": "API_KEY"}
"""The field that is meant where only a section is named."""


def suggest_variables(name: str, known: Collection[str]) -> list[str]:
    """Return the variables that may be meant, the nearest first; at most three."""
    import difflib

    names = {variable.removeprefix(PREFIX): variable for variable in sorted(known)}
    words = [_SYNONYMS.get(word, word) for word in name.removeprefix(PREFIX).split("_")]
    wanted = "_".join(words)
    wanted = _FIRST.get(wanted, wanted)
    if wanted in names:
        return [names[wanted]]
    found = (
        [one for one in names if one.endswith(f"_{wanted}")]
        or [one for one in names if one.startswith(f"{wanted}_")]
        or difflib.get_close_matches(wanted, names, 1, cutoff=MIN_SIMILARITY)
        or [one for one in names if wanted.startswith(f"{one}_")]
    )
    return [names[one] for one in found[:MAX_SUGGESTIONS]]
