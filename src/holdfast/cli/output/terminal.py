"""Terminal output: tables on a terminal, plain lines in a pipe, errors on one line.

Content is untrusted, so control characters are printed visibly and never reach the terminal.
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

EMPTY_CELL = "-"
_targets: list[str] = []
"""Gateways and stores that the running command has used."""


class CommandFailed(Exception):
    """A command failed; the message is the one line that is printed."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def report_failure(exc: Exception) -> int:
    """Print an exception; return exit code 2 for a wrong setting, else 1."""
    from holdfast.core.errors import HoldfastError, InvalidSetting

    if isinstance(exc, HoldfastError):
        print_failure(exc.message)
        return 2 if isinstance(exc, InvalidSetting) else 1
    filename = f": {exc.filename}" if isinstance(exc, OSError) and exc.filename else ""
    reason = exc.strerror if isinstance(exc, OSError) else None
    print_failure(f"{reason or exc}{filename}")
    return 1


def print_failure(message: str) -> None:
    """Print why a command failed, and its gateway or store unless the message names it."""
    used = [target for target in _targets if _address(target) not in message]
    first, *rest = message.splitlines() or [""]
    print_error(f"{first} ({', '.join(used)})" if used else first)
    for line in rest:
        print_error(line)
    _targets.clear()


def _address(target: str) -> str:
    """Return the URL of a gateway or store, or the file of a store."""
    return target.partition(" ")[2].removeprefix("sqlite:///")


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def colors_disabled() -> bool:
    """Return whether `--no-color` or NO_COLOR is set."""
    return bool(os.environ.get("NO_COLOR"))


def console() -> "Console":
    """Return a console for tables, without colours if they are disabled."""
    from rich.console import Console

    # Without colours there are no escape codes at all, not even for bold text.
    colors: Literal["auto"] | None = None if colors_disabled() else "auto"
    return Console(highlight=False, markup=False, emoji=False, color_system=colors)


def note_target(target: str) -> None:
    """Record the gateway or store of the command, for `print_targets`."""
    if target not in _targets:
        _targets.append(target)


def clear_targets() -> None:
    """Clear the gateways and stores of an earlier command."""
    _targets.clear()


def print_targets() -> None:
    """Print on standard error which gateway or store the command used."""
    for target in _targets:
        print_error(f"used {target}")
    _targets.clear()


def print_line(text: str = "") -> None:
    """Print a line."""
    print(text, flush=True)


def highlight(text: str, spans: Sequence[Sequence[int]]) -> str:
    """Return a text with ranges in bold; in a pipe or without colours, in `**`."""
    is_bold = is_terminal() and not colors_disabled()
    begin, end = ("\x1b[1m", "\x1b[0m") if is_bold else ("**", "**")
    parts, last = [], 0
    for start, stop in spans:
        parts += [printable(text[last:start]), begin, printable(text[start:stop]), end]
        last = stop
    return "".join([*parts, printable(text[last:])])


def print_error(text: str) -> None:
    """Print one line on standard error, whatever characters the text has."""
    print(f"holdfast: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; characters that are not printed have escapes of JSON."""
    line = json.dumps(value, ensure_ascii=False)
    if not line.isprintable():
        line = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
    print(line, flush=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    empty: str,
    optional: Sequence[str] = (),
) -> None:
    """Print rows fitted to the terminal, or separated by tabs in a pipe.

    On a narrow terminal the `optional` columns are dropped, the first one first.
    """
    if not rows:
        print_line(empty)
        return
    cells = [[*columns], *([_cell(value) for value in row] for row in rows)]
    if not is_terminal():
        for line in cells:
            print_line("\t".join(line))
        return
    out = console()
    _drop_columns(cells, optional, out.width)
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(cells[0]):
        # Ids are copied by hand, so they are never folded; other columns shrink instead.
        widest = max(len(line[index]) for line in cells) if name == "id" else None
        table.add_column(name, overflow="fold", min_width=widest)
    for line in cells[1:]:
        table.add_row(*line)
    out.print(table)


def _drop_columns(cells: list[list[str]], optional: Sequence[str], width: int) -> None:
    """Drop optional columns until the widest row fits."""
    for name in optional:
        widths = (max(len(line[at]) for line in cells) + 2 for at in range(len(cells[0])))
        if sum(widths) <= width:
            return
        at = cells[0].index(name)
        for line in cells:
            del line[at]


def print_pairs(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one pair per line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print_line(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    return EMPTY_CELL if value is None or value == "" else printable(str(value))


def printable(text: str, *, keep: str = "") -> str:
    """Return text with control characters escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char in keep or not unicodedata.category(char).startswith("C") else _escape(char)
        for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def format_time(seconds: float | None) -> str | None:
    """Return a time in the local time zone."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def truncate_line(text: str, width: int) -> str:
    """Return text on one line, cut to `width` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: max(width - 1, 0)] + "…"


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask for confirmation on a terminal; in a pipe, require the flag."""
    if is_confirmed:
        return
    if not (sys.stdin.isatty() and is_terminal()):
        raise CommandFailed("this cannot be undone; add --yes to confirm", exit_code=2)
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("not confirmed; nothing was changed")
