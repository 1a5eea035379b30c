"""Two reports in one table: before, after and the ratio."""

from collections.abc import Iterator
from typing import Any

from benchmarks.report import shown

Key = tuple[str, str, str]
"""Section, what was measured, name of the figure."""
_SETTINGS = {"clients", "turns", "sessions", "size", "processes", "length", "goal", "limit"}
"""Numbers that describe the measurement, not its result."""
_OMITTED = {"raw_cpu_us", "failures"}


def figures(value: dict[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield every figure of a report with its key."""
    for section, rows in value["sections"].items():
        for row in rows:
            about = ", ".join(
                f"{cell} {name}" if name in _SETTINGS else str(cell)
                for name, cell in row.items()
                if (name in _SETTINGS or isinstance(cell, str)) and name not in ("goal", "limit")
            )
            for name, cell in row.items():
                if isinstance(cell, int | float) and name not in _SETTINGS | _OMITTED:
                    yield (section, about, name), float(cell)


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the goals and all figures of two reports as tables."""
    commits = [value["versions"]["holdfast"] for value in (before, after)]
    lines = [f"Before: {commits[0]}. After: {commits[1]}.", ""]
    lines += ["| goal | wanted | before | after |", "|---|---|---|---|"]
    old = {goal["name"]: goal["measured"] for goal in before["goals"]}
    for goal in after["goals"]:
        measured = old.get(goal["name"], "not measured")
        lines.append(f"| {goal['name']} | {goal['wanted']} | {measured} | {goal['measured']} |")
    lines += ["", "| section | what | figure | before | after | after/before |"]
    lines.append("|---|---|---|---|---|---|")
    earlier = dict(figures(before))
    for key, value in figures(after):
        base = earlier.get(key)
        if base is None:
            continue
        ratio = f"{value / base:.2f}" if base else ""
        section, about, name = key
        lines.append(f"| {section} | {about} | {name} | {shown(base)} | {shown(value)} | {ratio} |")
    return "\n".join(lines) + "\n"
