"""Figures of a report for choosing a machine, written into the deployment page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.goals import Sections, find
from benchmarks.report import BEGIN, END, ROOT

PAGE = ROOT / "docs" / "how-to" / "deploy.md"


def sizing(value: dict[str, Any]) -> str:
    """Return the lines of a report that an operator needs."""
    rows = list(_figures(value["sections"]))
    if not rows:
        return "Not measured yet: `make bench` writes the figures here.\n"
    processor, system = value["machine"]["processor"], value["machine"]["system"]
    lines = [
        f"Measured by `make bench` on {processor}, {system}, load and upstream on the same cores:",
        "",
        "| what | figure |",
        "|---|---|",
        *(f"| {what} | {figure} |" for what, figure in rows),
    ]
    return "\n".join(lines) + "\n"


def _figures(sections: Sections) -> Iterator[tuple[str, str]]:
    for case, words in (("whole", "whole answers"), ("stream", "streamed answers")):
        row = find(
            sections, "gateway", system="holdfast", upstream="chat", case=case, keys="known",
            clients=32,
        )  # fmt: skip
        if row:
            rate, cpu = row["requests_per_second"], row["cpu_us"]
            yield (
                f"one process on SQLite, {words}, 32 clients",
                f"{rate:,.0f} turns/s, p99 {row['p99_ms']:.0f} ms, {cpu:,.0f} µs of CPU per turn",
            )
    for row in sections.get("scale", []):
        if "processes" in row:
            yield (
                f"{row['processes']} process(es) on one PostgreSQL",
                f"{row['requests_per_second']:,.0f} turns/s, p99 {row['p99_ms']:.0f} ms",
            )
    taken = next((row for row in sections.get("scale", []) if "answered" in row), None)
    if taken is not None:
        yield taken["case"], f"{taken['seconds']:.1f} s, {taken['answered']} answered"
    memory = find(sections, "process", case="memory after a small turn in each of 1,000 sessions")
    if memory:
        yield "memory of a process after a turn in each of 1,000 sessions", f"{memory['mb']:.0f} MB"
    disk = find(sections, "process", case="bytes on disk per reference turn")
    if disk:
        yield "disk for a turn of 128 bytes of text", f"{disk['bytes'] / 1024:.1f} KiB"
    start = find(sections, "start", case="holdfast serve")
    if start:
        yield "from start to the first answer", f"{start['seconds']:.2f} s"


def publish_sizing(value: dict[str, Any], page: Path = PAGE) -> None:
    """Write the figures into the deployment page, between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{sizing(value)}\n{END}{after}")
