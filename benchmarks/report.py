"""What was measured: as rows, as a table, as JSON, as a picture, and held against the goals."""

import platform
import shutil
import sqlite3
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import peers

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- begin: make bench -->", "<!-- end: make bench -->"


class Report:
    """Rows by section, in the order in which they came."""

    def __init__(self) -> None:
        self.sections: dict[str, list[Row]] = {}
        self.notes: list[str] = []

    def add(self, section: str, **row: Any) -> None:
        """Add a row, and show it."""
        self.sections.setdefault(section, []).append(row)
        print(
            "  " + "   ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True
        )

    def find(self, section: str, **wanted: Any) -> Row | None:
        """Return the row that has these values."""
        for row in self.sections.get(section, []):
            if all(row.get(name) == value for name, value in wanted.items()):
                return row
        return None

    def note(self, text: str) -> None:
        """Add something that a reader of the tables should know."""
        self.notes.append(text)
        print(f"  {text}", flush=True)

    def value(self) -> dict[str, Any]:
        """Return everything as it is written to JSON."""
        return {
            "machine": machine(),
            "versions": versions(),
            "sections": self.sections,
            "notes": self.notes,
            "goals": [msgspec.to_builtins(goal) for goal in goals(self)],
        }


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def machine() -> dict[str, str]:
    """Return where and on what it was measured."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = f"{len(named)} x {named[0].partition(':')[2].strip()}" if named else model
    release = ".".join(platform.release().split(".")[:2])
    return {"processor": model, "system": f"{platform.system()} {release}"}


def _commit() -> str:
    """Return which commit this is, where there is somebody to ask."""
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Return what was measured, by version and commit."""
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
    named = {"litellm": "litellm", "langgraph": "langgraph", "adk": "google-adk"}
    for peer, package in named.items():
        if (peers.CACHE / "venvs" / f"{peer}.ready").exists():
            found[package] = peers.version_of(peer, package)
        else:
            found[package] = "absent"
    return found


class Goal(msgspec.Struct, frozen=True):
    """A figure to close in on."""

    name: str
    wanted: str
    measured: str
    is_reached: bool | None
    """None where it was not measured."""


def goals(report: Report) -> list[Goal]:
    """Return each goal with what was measured for it."""

    def turn(system: str, clients: int, case: str = "whole") -> Row:
        row = report.find("gateway", system=system, case=case, keys="many", clients=clients)
        return row or {}

    ours, stream = turn("holdfast", 32), turn("holdfast", 32, "stream")
    rate = "requests_per_second"
    few, long = report.find("growth", turns=5) or {}, report.find("growth", turns=1000) or {}
    rss = report.find("growth", case="RSS after a turn in each of 1,000 sessions") or {}
    start = report.find("start", case="holdfast serve") or {}
    store = report.find("store", case="SQLite, 8 writers") or {}
    grouped = report.find("store", case="PostgreSQL, 64 writers") or {}
    added = _minus(turn("holdfast", 1).get("p50_ms"), turn("stub", 1).get("p50_ms"))
    of_nginx = _over(ours.get(rate), turn("nginx", 32).get(rate))
    of_litellm = _over(ours.get(rate), turn("LiteLLM", 32).get(rate))
    longer = _over(long.get("added_cpu_us"), few.get("added_cpu_us"))
    return [
        _least("share of nginx's requests/s", of_nginx, 0.15),
        _least("times LiteLLM's requests/s", of_litellm, 60),
        _most("ms added at p50, one client", added, 1.0),
        _most("µs of CPU for a turn", ours.get("cpu_us"), 130),
        _most("µs of CPU for a streamed chunk", stream.get("cpu_us_per_chunk"), 30),
        _most("CPU added at turn 1,000, times that at turn 5", longer, 1.2),
        _most("MB of memory at 1,000 sessions", rss.get("mb"), 80),
        _most("seconds to start", start.get("seconds"), 0.5),
        _least("8 writers, times SQLite's own commits", store.get("ratio"), 4),
        _least("PostgreSQL grouped, times its own commits", grouped.get("ratio"), 8),
        *_goals_of_sessions(report),
    ]


def _goals_of_sessions(report: Report) -> list[Goal]:
    """Return the goals beside the Agents SDK's own sessions, the best of them on each database."""

    def ratio(case: str) -> float | None:
        return (report.find("agents ratios", case=case) or {}).get("ratio")

    def read(case: str) -> float | None:
        return (report.find("agents", case=case, session="holdfast") or {}).get("p50_ms")

    found: list[Goal] = []
    for database in ("SQLite", "PostgreSQL"):
        for what, least in (("appends, 1 sessions", 2), ("appends, 8 sessions", 5),
                            ("read all of 10,000", 2)):  # fmt: skip
            case = f"{database}: {what}"
            found.append(_least(f"{case}, times the SDK's best", ratio(case), least))
        long, short = (read(f"{database}: read last 20 of {n}") for n in ("10,000", "1,000"))
        found.append(_most(f"{database}: last 20 of 10,000, times 1,000", _over(long, short), 1.2))
    return found


def _minus(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _least(name: str, found: float | None, least: float) -> Goal:
    wanted = f"at least {least:g}"
    if found is None:
        return Goal(name, wanted, "not measured", None)
    return Goal(name, wanted, f"{found:.3g}", found >= least)


def _most(name: str, found: float | None, most: float) -> Goal:
    wanted = f"at most {most:g}"
    if found is None:
        return Goal(name, wanted, "not measured", None)
    return Goal(name, wanted, f"{found:.3g}", found <= most)


_MARKS = {True: "reached", False: "not reached", None: "not measured"}


def markdown(value: dict[str, Any]) -> str:
    """Return a report's JSON as tables: what was measured first, then the goals."""
    lines = [
        f"Measured on {value['machine']['processor']}, {value['machine']['system']}.", "",
        ", ".join(f"{name} {version}" for name, version in value["versions"].items()) + ".",
    ]  # fmt: skip
    for section, rows in value["sections"].items():
        lines += ["", f"### {section.capitalize()}"]
        for names in dict.fromkeys(tuple(row) for row in rows):
            same = [row for row in rows if tuple(row) == names]
            lines += ["", f"| {' | '.join(_titled(name) for name in names)} |"]
            lines.append("|" + "---|" * len(names))
            lines += [f"| {' | '.join(_shown(row[name]) for name in names)} |" for row in same]
    lines += ["", *(f"- {note}" for note in value["notes"])]
    return "\n".join(lines).rstrip() + f"\n\n### Goals\n\n{goal_table(value)}"


def goal_table(value: dict[str, Any]) -> str:
    """Return the goals of a report's JSON, each beside what was measured for it."""
    lines = ["| goal | target | measured | |", "|---|---|---|---|"]
    for goal in value["goals"]:
        mark = _MARKS[goal["is_reached"]]
        lines.append(f"| {goal['name']} | {goal['wanted']} | {goal['measured']} | {mark} |")
    return "\n".join(lines) + "\n"


def publish(value: dict[str, Any], page: Path = PAGE) -> None:
    """Put the tables into the page about performance, between its marks, and the picture beside."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{markdown(value)}\n{END}{after}")
    page.with_name("gateway.svg").write_text(picture(value))


def _titled(name: str) -> str:
    words = name.replace("_", " ").replace("cpu us", "CPU µs").replace("rss mb", "RSS MB")
    return words.replace("requests per second", "requests/s").replace(" ms", " (ms)")


def picture(value: dict[str, Any]) -> str:
    """Return the requests a second of every system, by clients, as an SVG on a log scale."""
    rows = [
        row for row in value["sections"].get("gateway", [])
        if row["case"] == "whole" and row["keys"] == "many" and row["requests_per_second"] > 0
    ]  # fmt: skip
    return draw(rows)


def draw(rows: list[Row]) -> str:
    """Draw bars: systems as groups, clients as bars."""
    from math import log10

    width, left, high = 760, 110, 22
    bars: list[str] = []
    top = 40
    most = max((log10(row["requests_per_second"]) for row in rows), default=1.0)
    for system in dict.fromkeys(row["system"] for row in rows):
        bars.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{system}</text>')
        for row in (one for one in rows if one["system"] == system):
            rate = row["requests_per_second"]
            long = max(log10(rate), 0.0) / most * (width - left - 170)
            bars.append(
                f'<rect x="{left}" y="{top}" width="{long:.0f}" height="{high - 6}" '
                f'fill="{"#2a6f97" if system == "holdfast" else "#b8c4cc"}"/>'
                f'<text x="{left + long + 6:.0f}" y="{top + 13}">{rate:,.0f}/s, '
                f"{row['clients']} clients</text>"
            )
            top += high
        top += 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + 10}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        '<text x="10" y="20" font-size="14">Keyed turns a second (logarithmic)</text>'
        + "".join(bars) + "</svg>\n"
    )  # fmt: skip
