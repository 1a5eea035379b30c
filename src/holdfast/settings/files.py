"""A configuration file: its values, and the line of each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidSetting

Step = str | int
"""The name of a table or field, or the index of a table in an array of tables."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from, for messages: a flag, a variable, or a field of a file."""

    name: str
    file: "ConfigFile | None" = None
    path: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return f"{self.file.where(self.path)}: {self.name}" if self.file else self.name

    def inside(self, field: str) -> "Origin":
        """Return the origin of a field of this table."""
        return Origin(f"{self.name}.{field}", self.file, (*self.path, field))

    def locate(self, message: str) -> str:
        """Return a message with its location in front."""
        return f"{self.file.where(self.path) if self.file else self.name}: {message}"


class ConfigFile:
    """A configuration file: its values, and the line of each."""

    def __init__(self, path: Path, text: str) -> None:
        import tomllib

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

    def origin(self, *path: Step) -> Origin:
        """Return the origin of a section, a field, or a table of an array."""
        return Origin(".".join(step for step in path if isinstance(step, str)), self, path)

    def where(self, path: tuple[Step, ...]) -> str:
        """Return file and line of a value, or of the nearest enclosing table with a line."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return f"{self.path}:{self._lines[path[:end]]}"
        return f"{self.path}"


def _lines_of(lines: list[str]) -> Iterator[tuple[tuple[Step, ...], int]]:
    """Yield the path of each table and field with its line number."""
    table: tuple[Step, ...] = ()
    arrays: dict[tuple[Step, ...], int] = {}
    open_quote = ""
    for number, line in enumerate(lines, 1):
        outside = not open_quote
        for quote in re.findall(r"\"{3}|'{3}", line):
            open_quote = "" if quote == open_quote else open_quote or quote
        header = re.match(r"\s*(\[\[?)([^\[\]=,]+)\]", line)
        field = re.match(r"\s*([\w\-.\"' ]+?)\s*=", line)
        if outside and header:
            table = ()
            for name in _names(header[2]):
                table = (*table, *_last_index(table, arrays), name)
            if header[1] == "[[":
                arrays[table] = arrays.get(table, -1) + 1
                table = (*table, arrays[table])
            yield from ((table[:end], number) for end in range(len(table), 0, -1))
        elif outside and field:
            inner = _names(field[1])
            yield from (((*table, *inner[:end]), number) for end in range(len(inner), 0, -1))


def _last_index(path: tuple[Step, ...], arrays: dict[tuple[Step, ...], int]) -> tuple[Step, ...]:
    """Return the index of the open table, if `path` is an array of tables."""
    return (arrays[path],) if path in arrays else ()


def _names(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def read_file(path: Path) -> ConfigFile:
    """Read a configuration file."""
    try:
        return ConfigFile(path, path.read_text("utf-8"))
    except OSError as exc:
        raise InvalidSetting(f"{path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{path} is not UTF-8 text") from exc
