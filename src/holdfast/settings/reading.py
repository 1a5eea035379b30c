"""Files, environment and flags: found, converted, and blamed by their place when wrong."""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.errors import InvalidSetting
from holdfast.settings.files import File, Place

SectionT = TypeVar("SectionT")
Given = tuple[Any, Place]
"""A value as it was found, and where."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
NOT_FROM_OUTSIDE = frozenset({"key", "proxy"})
"""Fields that hold secrets: they are filled from the environment variable that another names."""


FLAGS = {
    ("store", "url"): "--store",
    ("upstream", "url"): "--upstream",
    ("upstream", "api"): "--upstream-api",
}
"""Flags that are not simply named after their field."""


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
        given: dict[str, Given] = {}
        for field in _fields(kind):
            self._known.setdefault(name, set()).add(field)
            found = self._find(name, field, in_file)
            if found is not None:
                given[field] = found
        return build(kind, given)

    def tables(
        self,
        name: str,
        kind: type[SectionT],
        finish: Callable[[SectionT], SectionT] = lambda made: made,
    ) -> list[SectionT]:
        """Return an array of tables, each after `finish`: file only."""
        self._known.setdefault("", set()).add(name)
        if self._file is None or name not in self._file.values:
            return []
        listed = self._file.values[name]
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise InvalidSetting(f"{self._file.place(name)} is written as [[{name}]] tables")
        found = []
        for number, one in enumerate(listed):
            place = self._file.place(name, number)
            found.append(convert_table(one, kind, place, finish))
        return found

    def overridden(self, name: str, kind: type[SectionT], *, needs: str) -> SectionT | None:
        """Return one table made of flags and environment alone, if they give what it `needs`."""
        given: dict[str, Given] = {}
        for field in _fields(kind):
            found = self._find(name, field, {})
            if found is not None:
                given[field] = found
        return build(kind, given) if needs in given else None

    def _table(self, name: str) -> Mapping[str, Any]:
        here: Any = self._file.values if self._file else {}
        parts = name.split(".")
        for depth, part in enumerate(parts, 1):
            here = here.get(part, {})
            if not isinstance(here, dict):
                assert self._file is not None
                place = self._file.place(*parts[:depth])
                raise InvalidSetting(f"{place} is a section: write [{'.'.join(parts[:depth])}]")
        table: Mapping[str, Any] = here
        return table

    def _find(self, section: str, field: str, in_file: Mapping[str, Any]) -> Given | None:
        flag = self._flags.get(section, {}).get(field)
        if flag is not None:
            return flag, Place(_flag(section, field))
        variable = _variable(section, field)
        if variable in self._environment:
            return self._environment[variable], Place(variable)
        if field in in_file:
            assert self._file is not None
            return in_file[field], self._file.place(*section.split("."), field)
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
            raise InvalidSetting(_unknown(self._file.place(*name.split(".")), name, sections))
        for field, inner in value.items():
            if isinstance(inner, dict) and f"{name}.{field}" in self._known:
                self._refuse_unknown_in(f"{name}.{field}", inner)
            elif field not in self._known[name]:
                place = self._file.place(*name.split("."), field)
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


def written(value: Any) -> str:
    """Return a value as a configuration file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{name} = {written(one)}" for name, one in value.items())
        return f"{{ {inner} }}"
    return repr(value)


def convert(value: Any, hint: Any, place: Place) -> Any:
    """Return a value of the type that a setting has; text from the environment is parsed."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return convert_table(value, hint, place)
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert_number(value, choices[0], place, f"a number {choices[1]}")
    if origin in (Union, UnionType):
        inner = next(choice for choice in choices if choice is not NoneType)
        return None if value is None else convert(value, inner, place)
    if origin is Literal:
        if value in choices:
            return value
        raise InvalidSetting(
            f"{place} is one of {', '.join(map(str, choices))}, not {written(value)}"
        )
    if origin is tuple:
        listed = value
        if isinstance(value, str) and place.file is None:
            listed = [one.strip() for one in value.split(",")] if value.strip() else []
        if not isinstance(listed, list | tuple):
            raise InvalidSetting(f"{place} is a list, not {written(value)}")
        return tuple(convert(one, choices[0], place) for one in listed)
    return _convert_plain(value, hint, place)


def convert_table(
    value: Any,
    kind: type[SectionT],
    place: Place,
    finish: Callable[[SectionT], SectionT] = lambda made: made,
) -> SectionT:
    """Return a table of the file as the section it is."""
    if not isinstance(value, dict):
        raise InvalidSetting(f"{place} is a table, not {written(value)}")
    hints = _fields(kind)
    for name in value:
        if name not in hints:
            raise InvalidSetting(_unknown(place.inside(name), name, hints))
    return build(kind, {k: (v, place.inside(k)) for k, v in value.items()}, place, finish)


def build(
    kind: type[SectionT],
    given: Mapping[str, Given],
    place: Place | None = None,
    finish: Callable[[SectionT], SectionT] = lambda made: made,
) -> SectionT:
    """Return a section of the values given; what its own checks refuse is told with its place."""
    hints = _fields(kind)
    values = {name: convert(value, hints[name], at) for name, (value, at) in given.items()}
    try:
        return finish(kind(**values))
    except TypeError as exc:
        missing = re.findall(r"'(\w+)'", str(exc))
        raise InvalidSetting(f"{place} needs {', '.join(missing)}") from exc
    except InvalidSetting as exc:
        named = [at for name, (_, at) in given.items() if _names(exc.message, name)]
        blamed = [*named, *([place] if place else []), *(at for _, at in given.values())]
        raise InvalidSetting(blamed[0].blame(exc.message) if blamed else exc.message) from exc


def _names(message: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", message) is not None


def _convert_plain(value: Any, hint: Any, place: Place) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
        raise InvalidSetting(f"{place} is true or false, not {written(value)}")
    if hint is str:
        if isinstance(value, str):
            return value
        raise InvalidSetting(f"{place} is text, not {written(value)}")
    return _convert_number(value, hint, place, "a number")


def _convert_number(value: Any, hint: Any, place: Place, wanted: str) -> Any:
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = int(value) if hint is int and not isinstance(value, float) else float(value)
            if isinstance(number, hint) and math.isfinite(number):
                return number
    except (OverflowError, ValueError):
        pass
    raise InvalidSetting(f"{place} is {wanted}, not {written(value)}")
