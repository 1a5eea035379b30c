"""The beginning of a report: the main results, and what each section measures."""

from typing import Any

from benchmarks.goals import Sections, find

TITLES = {
    "gateway": (
        "Turns over HTTP",
        "One gateway process in front of an upstream that answers at once.",
    ),
    "flows": (
        "What clients send",
        "Whole histories, chains, conversations and reads, beside one text per key.",
    ),
    "growth": ("Long sessions", "A turn of a session that has so many turns already."),
    "operations": ("Edits, forks and pages", "Operations on sessions of different sizes."),
    "process": ("Memory, disk and recovery", "What a process needs beside its turns."),
    "scale": ("Several processes", "Gateways that share one PostgreSQL database."),
    "store": ("Commits", "Writers of the store, beside the database alone."),
    "library": ("Python API", "Sessions without a server."),
    "agents": ("Sessions of the OpenAI Agents SDK", "Holdfast and the SDK's own session classes."),
    "agents ratios": (
        "Agents SDK: ratios",
        "Operations per second, as a multiple of the fastest of the SDK's own classes.",
    ),
    "search": ("Full-text search", "The index, and queries of every kind."),
    "start": ("Start", "From the start of the process to its first answer."),
    "counts": ("Counts", "Work that does not depend on the machine. Tests check the limits."),
}
"""Title and subject of each section, in the order of the page."""

_COLUMNS = ("turns/s, 32 clients", "p50 (ms), one client", "CPU µs per turn", "RSS MB")


def main_results(sections: Sections) -> list[dict[str, Any]]:
    """Return the main figures of each system: a Chat upstream and existing sessions."""
    rows = []
    for system in dict.fromkeys(row["system"] for row in sections.get("gateway", [])):
        busy, alone = (_turn(sections, system, clients) for clients in (32, 1))
        if busy and alone:
            figures = (
                busy["requests_per_second"], alone["p50_ms"], busy["cpu_us"], busy["rss_mb"],
            )  # fmt: skip
            rows.append({"system": system} | dict(zip(_COLUMNS, figures, strict=True)))
    return rows


def _turn(sections: Sections, system: str, clients: int) -> dict[str, Any]:
    return find(
        sections, "gateway", system=system, upstream="chat", case="whole", keys="known",
        clients=clients,
    )  # fmt: skip
