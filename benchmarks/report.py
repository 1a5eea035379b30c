"""The report: rows by section, as tables, as JSON and as a chart."""

import platform
import shutil
import sqlite3
import subprocess
import sys
from importlib import metadata
from math import log10
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.goals import Goal, goals
from benchmarks.servers import peers
from benchmarks.summary import TITLES, main_results

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- begin: make bench -->", "<!-- end: make bench -->"


class Report:
    """Rows by section, in the order in which they were added."""

    def __init__(self, before: str | None = None) -> None:
        self.sections: dict[str, list[Row]] = {}
        self.notes: list[str] = []
        self.before = before
        """The interpreter of another checkout to compare with."""

    def add(self, section: str, **row: Any) -> None:
        """Add a row and print it."""
        self.sections.setdefault(section, []).append(row)
        cells = "   ".join(f"{name} {shown(value)}" for name, value in row.items())
        print(f"  {cells}", flush=True)

    def note(self, text: str) -> None:
        """Add a remark for readers of the tables."""
        self.notes.append(text)
        print(f"  {text}", flush=True)

    def value(self) -> dict[str, Any]:
        """Return the whole report as plain values."""
        return {
            "machine": machine(),
            "versions": versions(),
            "sections": self.sections,
            "notes": self.notes,
            "goals": [msgspec.to_builtins(goal) for goal in goals(self.sections)],
        }


def shown(value: Any) -> str:
    """Return a value in the form that tables show."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def machine() -> dict[str, str]:
    """Return the processor and the system."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = f"{len(names)} x {names[0].partition(':')[2].strip()}" if names else model
    release = ".".join(platform.release().split(".")[:2])
    return {"processor": model, "system": f"{platform.system()} {release}"}


def _commit() -> str:
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of everything that was measured."""
    found = {"holdfast": f"{metadata.version('holdfast')} ({_commit() or 'no commit'})"}
    found["python"] = sys.version.split()[0]
    found["sqlite"] = sqlite3.sqlite_version
    for name in (
        "uvicorn", "uvloop", "httptools", "msgspec", "asyncpg", "openai-agents", "aiosqlite",
        "sqlalchemy",
    ):  # fmt: skip
        found[name] = metadata.version(name)
    for name in ("nginx", "wrk"):
        found[name] = peers.tool_version(name)
    return found | peers.versions()


_MARKS = {True: "reached", False: "not reached", None: "not measured"}


def goal_table(found: list[Goal]) -> list[str]:
    """Return the goals with their measured values as the lines of a table."""
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in found:
        mark = _MARKS[goal.is_reached]
        lines.append(f"| {goal.name} | {goal.wanted} | {goal.measured} | {mark} |")
    return lines


def markdown(value: dict[str, Any]) -> str:
    """Return a report as tables: the main results, each section, and the goals."""
    sections = value["sections"]
    names = [*(name for name in TITLES if name in sections), *(sections.keys() - TITLES.keys())]
    lines = [
        f"Measured on {value['machine']['processor']}, {value['machine']['system']}.",
        *_tables(main_results(sections)),
    ]
    for name in names:
        title, subject = TITLES.get(name, (name, ""))
        lines += ["", f"### {title}", "", subject, *_tables(sections[name])]
    lines += ["", "### Goals", "", *goal_table(msgspec.convert(value["goals"], list[Goal]))]
    lines += ["", "### Versions and remarks", ""]
    lines.append(", ".join(f"{name} {version}" for name, version in value["versions"].items()))
    lines[-1] += "."
    lines += ["", *(f"- {note}" for note in value["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def _tables(rows: list[Row]) -> list[str]:
    """Return rows as lines: a table for each set of columns."""
    lines = []
    for names in dict.fromkeys(tuple(row) for row in rows):
        same = [row for row in rows if tuple(row) == names]
        lines += ["", f"| {' | '.join(_title(name) for name in names)} |"]
        lines.append("|" + "---|" * len(names))
        lines += [f"| {' | '.join(shown(row[name]) for name in names)} |" for row in same]
    return lines


def publish(value: dict[str, Any], page: Path = PAGE) -> None:
    """Write the tables into the performance page, between its marks, and the chart."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{markdown(value)}\n{END}{after}")
    page.with_name("gateway.svg").write_text(chart(value))


def _title(name: str) -> str:
    words = name.replace("_", " ").replace("cpu us", "CPU µs").replace("rss mb", "RSS MB")
    return words.replace("requests per second", "requests/s").replace(" ms", " (ms)")


def chart(value: dict[str, Any]) -> str:
    """Return an SVG of requests per second of every system, by clients, on a log scale."""
    rows = [
        row for row in value["sections"].get("gateway", [])
        if row["case"] == "whole" and row["keys"] == "known" and row["requests_per_second"] > 0
    ]  # fmt: skip
    return draw(rows)


def draw(rows: list[Row]) -> str:
    """Draw bars: one group per system and upstream, one bar per number of clients."""
    width, left, height = 760, 190, 22
    bars: list[str] = []
    top = 40
    largest = max((log10(row["requests_per_second"]) for row in rows), default=1.0)
    for group in dict.fromkeys((row["system"], row["upstream"]) for row in rows):
        label = f"{group[0]}, {group[1]}"
        bars.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{label}</text>')
        for row in (row for row in rows if (row["system"], row["upstream"]) == group):
            rate = row["requests_per_second"]
            length = max(log10(rate), 0.0) / largest * (width - left - 170)
            bars.append(
                f'<rect x="{left}" y="{top}" width="{length:.0f}" height="{height - 6}" '
                f'fill="{"#2a6f97" if group[0] == "holdfast" else "#b8c4cc"}"/>'
                f'<text x="{left + length + 6:.0f}" y="{top + 13}">{rate:,.0f}/s, '
                f"{row['clients']} clients</text>"
            )
            top += height
        top += 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + 10}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        '<text x="10" y="20" font-size="14">Keyed turns per second (logarithmic)</text>'
        + "".join(bars) + "</svg>\n"
    )  # fmt: skip
