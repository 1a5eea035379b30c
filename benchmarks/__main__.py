"""Run the benchmarks: `python -m benchmarks [--short] [--only SECTION …] [--out FOLDER]`.

Everything is measured in one run on one machine, ours beside the bare parts and the peers. Look at
the ratios; the rest is the machine's. `--short` shows in seconds that everything works.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import gateway, growth, library, report, scale, sizing, start, store

SECTIONS = {
    "start": start.run,
    "gateway": gateway.run,
    "growth": growth.run,
    "store": store.run,
    "library": library.run,
    "scale": scale.run,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write `report.json`, `report.md` and `gateway.svg`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="seconds, no peers, no judgement")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--publish", action="store_true", help="write the tables into the docs")
    parser.add_argument("--out", type=Path, default=report.ROOT / "benchmarks" / "results")
    asked = parser.parse_args(arguments)
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        parser.error(f"--out {asked.out} cannot be written to: {exc.strerror}")
    found, is_whole = report.Report(), True
    try:
        _measure(found, asked.only, is_short=asked.short)
    except KeyboardInterrupt:
        is_whole = False
        found.note("broken off: what is missing was not measured")
    value = found.value()
    (asked.out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(value)))
    (asked.out / "report.md").write_text(report.markdown(value))
    (asked.out / "gateway.svg").write_text(report.picture(value))
    if asked.publish and is_whole:  # what was broken off would take the place of all of it
        report.publish(value)
        sizing.publish_sizing(value)
    print(report.goal_table(value))
    print(f"written to {asked.out}")


def _measure(found: report.Report, names: Sequence[str], *, is_short: bool) -> None:
    for name in names:
        print(f"{name}:", flush=True)
        began = time.perf_counter()
        try:
            SECTIONS[name](found, is_short=is_short)
        except Exception as exc:  # one peer that breaks must not cost all the rest
            if is_short:
                raise
            found.note(f"{name} broke off: {type(exc).__name__}: {exc}")
        print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
