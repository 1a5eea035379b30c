"""A configuration file: its values, and the line on which each of them stands."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidSetting

Step = str | int
"""The name of a table or field, or the number of a table in an array of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value came from, for people: a flag, a variable, or a field of a file."""

    name: str
    file: "File | None" = None
    path: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.where(self.path)}: {self.name}" if self.file else self.name

    def inside(self, field: str) -> "Place":
        """Return the place of a field of the table that stands here."""
        return Place(f"{self.name}.{field}", self.file, (*self.path, field))

    def blame(self, message: str) -> str:
        """Return a message that names what it is about, with where that stands."""
        return f"{self.file.where(self.path) if self.file else self.name}: {message}"


class File:
    """A configuration file: its values, and the line of each."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        lines = text.splitlines()
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            at = re.search(r" \(at line (\d+), (column \d+)\)$", str(exc))
            line, column = (at[1], at[2]) if at else (max(len(lines), 1), "at the end")
            message = str(exc).partition(" (at ")[0]
            raise InvalidSetting(f"{path}:{line}: {message} ({column})") from exc
        self._lines: dict[tuple[Step, ...], int] = {}
        for found, number in _lines_of(lines):
            self._lines.setdefault(found, number)

    def place(self, *path: Step) -> Place:
        """Return the place of a section, a field, or a table of an array by its number."""
        return Place(".".join(step for step in path if isinstance(step, str)), self, path)

    def where(self, path: tuple[Step, ...]) -> str:
        """Return file and line of a value, or of the nearest thing around it that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return f"{self.path}:{self._lines[path[:end]]}"
        return f"{self.path}"


def _lines_of(lines: list[str]) -> Iterator[tuple[tuple[Step, ...], int]]:
    """Return what is opened or set on which line."""
    here: tuple[Step, ...] = ()
    arrays: dict[tuple[Step, ...], int] = {}
    within = ""
    for number, line in enumerate(lines, 1):
        outside = not within
        for mark in re.findall(r"\"{3}|'{3}", line):
            within = "" if mark == within else within or mark
        header = re.match(r"\s*(\[\[?)([^\[\]=,]+)\]", line)
        field = re.match(r"\s*([\w\-.\"' ]+?)\s*=", line)
        if outside and header:
            here = ()
            for name in _names(header[2]):
                here = (*here, *_last(here, arrays), name)
            if header[1] == "[[":
                arrays[here] = arrays.get(here, -1) + 1
                here = (*here, arrays[here])
            yield from ((here[:end], number) for end in range(len(here), 0, -1))
        elif outside and field:
            inner = _names(field[1])
            yield from (((*here, *inner[:end]), number) for end in range(len(inner), 0, -1))


def _last(path: tuple[Step, ...], arrays: dict[tuple[Step, ...], int]) -> tuple[Step, ...]:
    """Return the number of the table that is open, if this is an array of tables."""
    return (arrays[path],) if path in arrays else ()


def _names(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def read_file(path: Path) -> File:
    """Return a configuration file, or say why it cannot be read."""
    try:
        return File(path, path.read_text("utf-8"))
    except OSError as exc:
        raise InvalidSetting(f"{path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{path} is not UTF-8 text") from exc
