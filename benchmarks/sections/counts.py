"""The counts that the tests hold, with their limits and goals."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.counts.limits import LIMITS

from benchmarks.counting.appends import calls_per_append
from benchmarks.counting.disk import bytes_per_turn, frames_per_turn
from benchmarks.counting.growth import AXES, ratio
from benchmarks.counting.profiled import queued_turn_counts, stream_calls, turn_counts
from benchmarks.report import Report


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure every count; the short form takes one of each kind that is quick."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        for count, value in _counts(folder, is_short=is_short):
            limit, goal = LIMITS[count]
            report.add("counts", count=count, value=value, limit=limit, goal=goal)


def _counts(folder: Path, *, is_short: bool) -> Iterator[tuple[str, float]]:
    for kind in ("chat",) if is_short else ("chat", "responses"):
        yield f"calls per turn, {kind}", turn_counts(folder, kind).calls
        yield f"calls per first turn, {kind}", turn_counts(folder, kind, is_first=True).calls
        yield f"calls per queued turn, {kind}", queued_turn_counts(folder, kind).calls
        stream = stream_calls(folder, kind, kind)
        yield f"calls per streamed chunk, {kind}", stream.per_chunk
        yield f"calls per stream beside its chunks, {kind} to {kind}", stream.beside_chunks
    yield "calls per append of an SDK session", calls_per_append(folder)
    if is_short:
        return
    yield "WAL frames per turn, 2,000 sessions", frames_per_turn(folder, 2000, 1000)
    yield "bytes on disk per turn", bytes_per_turn(folder)
    for axis, measure in AXES.items():
        for kind in ("chat", "responses"):
            for operation, counts in measure(folder, kind).items():
                yield f"{axis}, {kind}, {operation}", ratio(counts)[0]
