"""Run the benchmarks: `python -m benchmarks [--short] [--only SECTION …] [--json FILE]`.

Everything is measured in one run on one machine, ours beside bare parts and peers; CPU times are
scaled by a spin loop beside each run. `--short` takes a minute and only shows that all of it works.
`--compare BEFORE.json AFTER.json` measures nothing and prints two reports in one table.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import report, sizing
from benchmarks.compare import compare

SECTIONS = (
    "start", "counts", "gateway", "flows", "growth", "operations", "process", "store", "library",
    "search", "scale",
)  # fmt: skip
"""Modules of `benchmarks.sections`: each imports large packages, so only those that run do."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the goals, and write `report.json`, `report.md` and `gateway.svg`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="a minute, no peers, no goals")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--publish", action="store_true", help="write the tables into the docs")
    parser.add_argument("--out", type=Path, default=report.ROOT / "benchmarks" / "results")
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--before", help="interpreter of another checkout to load beside this one")
    parser.add_argument(
        "--search-items", type=int, help="items of the section search; 1,000,000 take minutes"
    )
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args(arguments)
    if options.compare:
        before, after = (_load(parser, path) for path in options.compare)
        print(compare(before, after), end="")
        return
    _check_writable(parser, options.out, options.json)
    found, is_complete = report.Report(options.before), True
    try:
        _measure(found, options.only, is_short=options.short, search_items=options.search_items)
    except KeyboardInterrupt:
        is_complete = False
        found.note("interrupted: the remaining sections were not measured")
    _write(found.value(), options, is_complete=is_complete)


def _check_writable(parser: argparse.ArgumentParser, out: Path, json: Path | None) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        parser.error(f"--out {out}: cannot be written to: {exc.strerror}")
    try:
        if json is not None:
            json.touch()
    except OSError as exc:
        parser.error(f"--json {json}: cannot be written to: {exc.strerror}")


def _load(parser: argparse.ArgumentParser, path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as exc:
        parser.error(f"--compare {path}: not a report: {exc}")


def _write(value: dict[str, Any], options: argparse.Namespace, *, is_complete: bool) -> None:
    raw = msgspec.json.format(msgspec.json.encode(value))
    (options.out / "report.json").write_bytes(raw)
    (options.out / "report.md").write_text(report.markdown(value))
    (options.out / "gateway.svg").write_text(report.chart(value))
    if options.json is not None:
        options.json.write_bytes(raw)
    if options.publish and is_complete:  # a part must not replace the whole in the docs
        report.publish(value)
        sizing.publish_sizing(value)
    print(report.markdown(value).partition("**")[0])
    print(f"written to {options.out}")


def _measure(
    found: report.Report, names: Sequence[str], *, is_short: bool, search_items: int | None
) -> None:
    for name in names:
        print(f"{name}:", flush=True)
        began = time.perf_counter()
        try:
            run: Callable[..., None] = import_module(f"benchmarks.sections.{name}").run
            options = {"items": search_items} if name == "search" else {}
            run(found, is_short=is_short, **options)
        except Exception as exc:  # one section that fails must not cost the others
            if is_short:
                raise
            reason = f"{type(exc).__name__} {exc}".rstrip()
            found.note(f"the section {name} is incomplete: {reason}")
        print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
