"""What the command line prints: tables on a terminal, plain lines in a pipe, one line of error.

Content comes from strangers, so nothing that could steer a terminal is printed as it came.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "-"


class CommandFailed(Exception):
    """A command could not do what it was asked; the message is the one line that is printed."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def failure_code(exc: Exception) -> int:
    """Say in one line what went wrong; return 1, or 2 where a setting is wrong."""
    from holdfast.core.errors import HoldfastError, InvalidSetting

    if isinstance(exc, HoldfastError):
        complain(exc.message)
        return 2 if isinstance(exc, InvalidSetting) else 1
    where = f": {exc.filename}" if isinstance(exc, OSError) and exc.filename else ""
    why = exc.strerror if isinstance(exc, OSError) else None
    complain(f"{why or exc}{where}")
    return 1


def is_terminal() -> bool:
    """Whether somebody looks at standard output."""
    return sys.stdout.isatty()


def is_plain() -> bool:
    """Whether somebody asked for text without colours, by `--no-color` or NO_COLOR."""
    return bool(os.environ.get("NO_COLOR"))


def console() -> "Console":
    """Return where tables go; colours are off when asked, or when nobody looks."""
    from rich.console import Console

    # Bold is no colour, but who asked for plain text had no escape codes in mind.
    colours: Literal["auto"] | None = None if is_plain() else "auto"
    return Console(highlight=False, markup=False, emoji=False, color_system=colours)


def say(text: str = "") -> None:
    """Print a line."""
    print(text, flush=True)


def complain(text: str) -> None:
    """Print one line of error, whatever the text holds."""
    print(f"holdfast: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def say_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str,
    spare: Sequence[str] = (),
) -> None:
    """Print rows: fitted to the terminal, or tab-separated and whole in a pipe.

    Where a terminal is too narrow, the `spare` columns are left out, the first one first.
    """
    if not rows:
        say(empty)
        return
    cells = [[*columns], *([_cell(value) for value in row] for row in rows)]
    if not is_terminal():
        for line in cells:
            say("\t".join(line))
        return
    out = console()
    _fit(cells, spare, out.width)
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(cells[0]):
        # An id is for copying: it stays in one piece, and the rest of the row gives way.
        widest = max(len(line[index]) for line in cells) if name == "id" else None
        table.add_column(name, overflow="fold", min_width=widest)
    for line in cells[1:]:
        table.add_row(*line)
    out.print(table)


def _fit(cells: list[list[str]], spare: Sequence[str], width: int) -> None:
    """Leave spare columns out until the widest row fits, or none is left."""
    for name in spare:
        widths = (max(len(line[at]) for line in cells) + 2 for at in range(len(cells[0])))
        if sum(widths) <= width:
            return
        at = cells[0].index(name)
        for line in cells:
            del line[at]


def say_pairs(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        say(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    return NOTHING if value is None or value == "" else printable(str(value))


def printable(text: str, *, keep: str = "") -> str:
    """Return text in which nothing steers the terminal: control characters become visible."""
    if text.isprintable():
        return text
    return "".join(
        char if char in keep or not unicodedata.category(char).startswith("C") else _visible(char)
        for char in text
    )


def _visible(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def moment(seconds: float | None) -> str | None:
    """Return a time as people read it, in the zone of this machine."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def one_line(text: str, width: int) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: max(width - 1, 0)] + "…"


def confirm(question: str, *, is_sure: bool) -> None:
    """Have somebody at a terminal say yes; in a pipe, only a flag can."""
    if is_sure:
        return
    if not (sys.stdin.isatty() and is_terminal()):
        raise CommandFailed("this cannot be undone; say --yes if it is meant", exit_code=2)
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was done")
