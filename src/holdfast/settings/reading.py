"""Files, environment and flags: found, converted, and blamed by their place when wrong."""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.errors import InvalidSetting

SectionT = TypeVar("SectionT")
Place = str
"""Where a value came from, for people."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
NOT_FROM_OUTSIDE = frozenset({"key"})
"""Fields that hold secrets: they are filled from the environment variable that another names."""


FLAGS = {
    ("store", "url"): "--store",
    ("upstream", "url"): "--upstream",
    ("upstream", "api"): "--upstream-api",
}
"""Flags that are not simply named after their field."""


class File:
    """A configuration file: its values, and the line of each."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise InvalidSetting(f"{path}: {exc}") from exc
        self._lines = text.splitlines()

    def place(self, section: str, name: str, number: int = 0) -> Place:
        """Return where a field stands; `number` counts the tables of one name."""
        line = self._line_of(section, name, number) or self._line_of(section, "", number)
        where = f"{self.path}:{line}" if line is not None else f"{self.path}"
        return f"{where}: {section}.{name}"

    def place_of_section(self, name: str) -> Place:
        """Return where a section begins, or a field that stands in none."""
        header = re.compile(rf"\s*\[+\s*\"?{re.escape(name)}\"?\s*[\].]")
        field = re.compile(rf"\s*\"?{re.escape(name)}\"?\s*[=.]")
        for wanted in (header, field):
            for at, line in enumerate(self._lines, 1):
                if wanted.match(line):
                    return f"{self.path}:{at}: {name}"
        return f"{self.path}: {name}"

    def _line_of(self, section: str, name: str, number: int) -> int | None:
        """Return the line of a field or, without a name, of its section's header."""
        here, seen = "", -1
        for at, line in enumerate(self._lines, 1):
            header = re.match(r"\s*\[+([^\]]+)\]+", line)
            if header:
                here = header[1].strip()
                seen += here == section
                if not name and here == section and seen == number:
                    return at
            elif (
                name
                and here == section
                and seen == number
                and re.match(rf"\s*\"?{re.escape(name)}\"?\s*=", line)
            ):
                return at
        return None


def read_file(path: Path) -> File:
    """Return a configuration file, or say why it cannot be read."""
    try:
        return File(path, path.read_text("utf-8"))
    except OSError as exc:
        raise InvalidSetting(f"{path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidSetting(f"{path} is not UTF-8 text") from exc


class Sources:
    """Everything that may hold a value; remembers what was asked for, to find what never is."""

    def __init__(
        self,
        file: File | None,
        environment: Mapping[str, str],
        flags: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._file = file
        self._environment = environment
        self._flags = flags
        self._known: dict[str, set[str]] = {}

    def section(self, name: str, kind: type[SectionT]) -> SectionT:
        """Return a section, every field checked against its type."""
        in_file = self._table(name)
        given: dict[str, Any] = {}
        for field, hint in _fields(kind).items():
            self._known.setdefault(name, set()).add(field)
            found = self._find(name, field, in_file)
            if found is not None:
                value, place = found
                given[field] = convert(value, hint, place)
        return self._build(name, kind, given)

    def tables(self, name: str, kind: type[SectionT]) -> list[SectionT]:
        """Return an array of tables: file only."""
        self._known.setdefault("", set()).add(name)
        listed = self._file.values.get(name, []) if self._file else []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise InvalidSetting(f"{name} is written as [[{name}]] tables")
        hints = _fields(kind)
        found = []
        for number, one in enumerate(listed):
            assert self._file is not None
            given = {}
            for field, value in one.items():
                place = self._file.place(name, field, number)
                if field not in hints:
                    raise InvalidSetting(_unknown(place, field, hints))
                given[field] = convert(value, hints[field], place)
            found.append(self._build(name, kind, given, number))
        return found

    def overridden(self, name: str, kind: type[SectionT], *, needs: str) -> SectionT | None:
        """Return one table made of flags and environment alone, if they give what it `needs`."""
        given: dict[str, Any] = {}
        for field, hint in _fields(kind).items():
            found = self._find(name, field, {})
            if found is not None:
                given[field] = convert(found[0], hint, found[1])
        if needs not in given:
            return None
        return self._build(name, kind, given)

    def _build(
        self, name: str, kind: type[SectionT], given: dict[str, Any], number: int = 0
    ) -> SectionT:
        try:
            return kind(**given)
        except TypeError as exc:
            missing = re.findall(r"'(\w+)'", str(exc))
            place = self._file.place(name, missing[0], number) if self._file and missing else name
            raise InvalidSetting(
                f"{place.rsplit(': ', 1)[0]}: {name} needs {', '.join(missing)}"
            ) from exc
        except InvalidSetting as exc:
            raise InvalidSetting(self._with_place(name, given, exc.message, number)) from exc

    def _with_place(self, name: str, given: Mapping[str, Any], message: str, number: int) -> str:
        """Say where the field stands that a section's own check refused."""
        for field in given:
            if not re.search(rf"\b{re.escape(field)}\b", message):
                continue
            variable = _variable(name, field)
            if self._flags.get(name, {}).get(field) is not None:
                return f"{_flag(name, field)}: {message}"
            if variable in self._environment:
                return f"{variable}: {message}"
            if self._file is not None:
                return f"{self._file.place(name, field, number).rsplit(': ', 1)[0]}: {message}"
        return message

    def _table(self, name: str) -> Mapping[str, Any]:
        here: Any = self._file.values if self._file else {}
        for part in name.split("."):
            here = here.get(part, {})
            if not isinstance(here, dict):
                raise InvalidSetting(f"{name} is a section: write [{name}]")
        table: Mapping[str, Any] = here
        return table

    def _find(
        self, section: str, field: str, in_file: Mapping[str, Any]
    ) -> tuple[Any, Place] | None:
        flag = self._flags.get(section, {}).get(field)
        if flag is not None:
            return flag, _flag(section, field)
        variable = _variable(section, field)
        if variable in self._environment:
            return self._environment[variable], variable
        if field in in_file:
            assert self._file is not None
            return in_file[field], self._file.place(section, field)
        return None

    def refuse_unknown(self) -> None:
        """Refuse fields and sections that nobody asked for: a typo must not be a silent default."""
        if self._file is None:
            return
        for name, value in self._file.values.items():
            self._refuse_unknown_in(name, value)

    def _refuse_unknown_in(self, name: str, value: Any) -> None:
        assert self._file is not None
        if isinstance(value, list) and name in self._known.get("", set()):
            return
        if name not in self._known or not isinstance(value, dict):
            sections = {*self._known, *self._known.get("", set())} - {""}
            raise InvalidSetting(_unknown(self._file.place_of_section(name), name, sections))
        for field, inner in value.items():
            if isinstance(inner, dict) and f"{name}.{field}" in self._known:
                self._refuse_unknown_in(f"{name}.{field}", inner)
            elif field not in self._known[name]:
                place = self._file.place(name, field)
                raise InvalidSetting(_unknown(place, field, self._known[name]))


def _fields(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: hints[name] for name in names if name not in NOT_FROM_OUTSIDE}


def _flag(section: str, field: str) -> str:
    """Return the flag of a field."""
    return FLAGS.get((section, field), f"--{field.replace('_', '-')}")


def _variable(section: str, field: str) -> str:
    """Return the environment variable of a field."""
    return f"HOLDFAST_{section.replace('.', '_')}_{field}".upper()


def _unknown(place: Place, name: str, known: "set[str] | Mapping[str, Any]") -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"; did you mean {near[0]}?" if near else f"; there is {', '.join(sorted(known))}"
    return f"{place} is no setting{hint}"


def convert(value: Any, hint: Any, place: Place) -> Any:
    """Return a value of the type that a setting has; text from the environment is parsed."""
    if dataclasses.is_dataclass(hint):
        return _convert_table(value, hint, place)
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert_number(value, choices[0], place, f"a number {choices[1]}")
    if origin in (Union, UnionType):
        inner = next(choice for choice in choices if choice is not NoneType)
        return None if value is None else convert(value, inner, place)
    if origin is Literal:
        if value in choices:
            return value
        raise InvalidSetting(f"{place} is one of {', '.join(map(str, choices))}, not {value!r}")
    if origin is tuple:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple):
            raise InvalidSetting(f"{place} is a list, not {value!r}")
        return tuple(convert(one, choices[0], place) for one in listed)
    return _convert_plain(value, hint, place)


def _convert_table(value: Any, kind: Any, place: Place) -> Any:
    if not isinstance(value, dict):
        raise InvalidSetting(f"{place} is a table, not {value!r}")
    hints = _fields(kind)
    for name in value:
        if name not in hints:
            raise InvalidSetting(_unknown(f"{place}.{name}", name, hints))
    return kind(
        **{name: convert(one, hints[name], f"{place}.{name}") for name, one in value.items()}
    )


def _convert_plain(value: Any, hint: Any, place: Place) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
        raise InvalidSetting(f"{place} is true or false, not {value!r}")
    if hint is str:
        if isinstance(value, str):
            return value
        raise InvalidSetting(f"{place} is text, not {value!r}")
    return _convert_number(value, hint, place, "a number")


def _convert_number(value: Any, hint: Any, place: Place, wanted: str) -> Any:
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = int(value) if hint is int and not isinstance(value, float) else float(value)
            if isinstance(number, hint) and math.isfinite(number):
                return number
    except (OverflowError, ValueError):
        pass
    raise InvalidSetting(f"{place} is {wanted}, not {value!r}")
