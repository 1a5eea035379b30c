"""Progress of long work: shown on a terminal, silent in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Called after each finished piece of work, or after several."""

    def __call__(self, status: str = "", pieces: int = 1) -> None: ...


def no_progress(status: str = "", pieces: int = 1) -> None:
    """Show nothing."""
    del status, pieces


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Count pieces of work on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        count = 0

        def advance(status: str = "", pieces: int = 1) -> None:
            nonlocal count
            count += pieces
            bar.update(task, description=escape(f"{title}: {count} {status}".strip()))

        yield advance
