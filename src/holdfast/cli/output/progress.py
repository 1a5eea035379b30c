"""Progress of long work: seen on a terminal, silent in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Told of each piece of work that is done."""

    def __call__(self, what: str = "") -> None: ...


def unseen(what: str = "") -> None:
    """Nobody looks."""
    del what


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Count pieces of work on standard error, if somebody looks."""
    if not sys.stderr.isatty():
        yield unseen
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title)
        done = 0

        def advance(what: str = "") -> None:
            nonlocal done
            done += 1
            shown.update(task, description=escape(f"{title}: {done} {what}".strip()))

        yield advance
