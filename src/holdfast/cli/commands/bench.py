"""`holdfast bench`: run the benchmarks of the checkout that contains this package."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output.terminal import CommandFailed

ROOT = Path(__file__).resolve().parents[4]
SECTIONS = (
    "start", "counts", "gateway", "flows", "growth", "operations", "process", "store", "library",
    "search", "scale",
)  # fmt: skip


def bench(
    short: Annotated[
        bool, typer.Option("--short", help="About a minute, without peers: a smoke test.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"A section: {', '.join(SECTIONS)}. Repeatable."),
    ] = None,
    search_items: Annotated[
        int | None, typer.Option(min=1, help="Items of the section search.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the report.")] = None,
) -> None:
    """Measure this gateway beside others, as ratios."""
    if not (ROOT / "benchmarks" / "__main__.py").exists():
        raise CommandFailed("the benchmarks are part of a checkout: run `make bench` in one")
    for name in only or []:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise CommandFailed(f"--only: no section {name!r}; there are {known}", exit_code=2)
    command = [sys.executable, "-m", "benchmarks"]
    command += ["--short"] if short else []
    command += ["--only", *only] if only else []
    command += ["--search-items", str(search_items)] if search_items is not None else []
    command += ["--out", str(out.resolve())] if out is not None else []
    raise typer.Exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
