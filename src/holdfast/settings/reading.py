"""Reading of values from flags, environment and file, with their origin for error messages."""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, time
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.core.errors import InvalidSetting
from holdfast.settings.files import ConfigFile, Origin
from holdfast.settings.paths import with_absolute_paths
from holdfast.settings.suggestions import suggest_variables

SectionT = TypeVar("SectionT")
SourcedValue = tuple[Any, Origin]
"""A raw value and its origin."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
SECRET_FIELDS = frozenset({"key", "proxy", "runtime", "secrets", "token", "app_token", "secret"})
"""Fields that may hold secrets: filled from the environment, never set directly."""
TEST_PREFIX = "HOLDFAST_TEST_"
"""Variables of the test suite, which are not settings."""


SETTINGS_HELP = (
    "`holdfast config show` prints the settings; the variable of [server] port is "
    "HOLDFAST_SERVER_PORT"
)

FLAGS = {
    ("store", "url"): "--store",
    ("upstream", "url"): "--upstream",
    ("upstream", "api"): "--upstream-api",
    ("log", "level"): "--log-level",
    ("log", "format"): "--log-format",
}
"""Flags that are not named after their field."""


class Sources:
    """All sources of values; records which names are known, to reject the others."""

    def __init__(
        self,
        file: ConfigFile | None,
        environment: Mapping[str, str],
        flags: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._file = file
        self._environment = environment
        self._flags = flags
        self._known: dict[str, set[str]] = {}
        self._variables: set[str] = set()
        self._problems: list[str] = []
        self._has_wrong_table = False
        """Whether a table could not be read: the variables that it names are not known."""

    def section(self, name: str, kind: type[SectionT]) -> SectionT:
        """Return a section, with every field converted and checked; the default for a wrong one."""
        self._known.setdefault(name, set()).update(_fields(kind))
        try:
            return self._section(name, kind)
        except InvalidSetting as exc:
            self._problems.append(exc.message)
            return kind()

    def _section(self, name: str, kind: type[SectionT]) -> SectionT:
        in_file = self._table(name)
        values: dict[str, SourcedValue] = {}
        for field in _fields(kind):
            self._variables.add(_variable(name, field))
            value = self._find(name, field, in_file)
            if value is not None:
                values[field] = value
        return build(kind, values)

    def tables(
        self,
        name: str,
        kind: type[SectionT],
        finish: Callable[[SectionT], SectionT] = lambda section: section,
    ) -> list[SectionT]:
        """Return an array of tables of the file, each passed through `finish`; no wrong ones."""
        self._known.setdefault("", set()).add(name)
        if self._file is None or name not in self._file.values:
            return []
        tables = self._file.values[name]
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._add_table_problem(
                f"{self._file.origin(name)} must be written as [[{name}]] tables"
            )
            return []
        sections: list[SectionT] = []
        for index, table in enumerate(tables):
            try:
                sections.append(convert_table(table, kind, self._file.origin(name, index), finish))
            except InvalidSetting as exc:
                self._add_table_problem(exc.message)
        return sections

    def _add_table_problem(self, problem: str) -> None:
        self._problems.append(problem)
        self._has_wrong_table = True

    def check(self, check: Callable[[], None]) -> None:
        """Run a check of settings that were read without a problem."""
        if not self._problems:
            try:
                check()
            except InvalidSetting as exc:
                self._problems.append(exc.message)

    def raise_problems(self) -> None:
        """Raise everything that is wrong, one problem on a line."""
        lines = (line for problem in self._problems for line in problem.splitlines())
        problems = list(dict.fromkeys(lines))
        if len(problems) == 1:
            raise InvalidSetting(problems[0])
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise InvalidSetting(f"{len(problems)} problems in the configuration:\n{listed}")

    def lists(
        self, name: str, check: Callable[[str, tuple[str, ...]], None]
    ) -> dict[str, tuple[str, ...]]:
        """Return a section whose fields the user names, each a list of texts, after a check."""
        self._known[name] = set()
        try:
            table = self._table(name)
        except InvalidSetting as exc:
            self._problems.append(exc.message)
            return {}
        self._known[name] = set(table)
        lists: dict[str, tuple[str, ...]] = {}
        for field, value in table.items():
            assert self._file is not None
            origin = self._file.origin(name, field)
            try:
                lists[field] = convert(value, tuple[str, ...], origin)
            except InvalidSetting as exc:
                self._problems.append(exc.message)
                continue
            try:
                check(field, lists[field])
            except InvalidSetting as exc:
                self._problems.append(f"{origin}: {exc.message}")
        return lists

    def overridden(self, name: str, kind: type[SectionT], *, needs: str) -> SectionT | None:
        """Return a table made of flags and environment alone, if they set the field `needs`.

        Without it, the other fields would be ignored silently: they are a problem.
        """
        values: dict[str, SourcedValue] = {}
        for field in _fields(kind):
            self._variables.add(_variable(name, field))
            value = self._find(name, field, {})
            if value is not None:
                values[field] = value
        if values and needs not in values:
            origins = ", ".join(str(at) for _, at in values.values())
            self._problems.append(
                f"{origins}: has no effect without {_flag(name, needs)} or "
                f"{_variable(name, needs)}; set it in the [[{name}]] table of the file instead"
            )
            return None
        try:
            return build(kind, values) if values else None
        except InvalidSetting as exc:
            self._problems.append(exc.message)
            return None

    def _table(self, name: str) -> Mapping[str, Any]:
        value: Any = self._file.values if self._file else {}
        parts = name.split(".")
        for depth, part in enumerate(parts, 1):
            value = value.get(part, {})
            if not isinstance(value, dict):
                assert self._file is not None
                origin = self._file.origin(*parts[:depth])
                raise InvalidSetting(f"{origin} is a section: write [{'.'.join(parts[:depth])}]")
        table: Mapping[str, Any] = value
        return table

    def _find(self, section: str, field: str, in_file: Mapping[str, Any]) -> SourcedValue | None:
        flag = self._flags.get(section, {}).get(field)
        if flag is not None:
            return flag, Origin(_flag(section, field))
        variable = _variable(section, field)
        if variable in self._environment:
            return self._environment[variable], Origin(variable)
        if field in in_file:
            assert self._file is not None
            return in_file[field], self._file.origin(*section.split("."), field)
        return None

    def reject_unknown(self) -> None:
        """Reject unknown fields and sections of the file: a typo must not be ignored."""
        if self._file is None:
            return
        for name, value in self._file.values.items():
            self._reject_unknown_in(name, value)

    def reject_unknown_variables(self, other: "Collection[str]") -> None:
        """Reject unknown HOLDFAST_ variables, except those in `other`.

        With a table that could not be read, its variables would seem to be unknown.
        """
        if self._has_wrong_table:
            return
        known = self._variables | set(other)
        for name in sorted(self._environment):
            is_ours = name.startswith("HOLDFAST_") and not name.startswith(TEST_PREFIX)
            if is_ours and name not in known:
                self._problems.append(_unknown_variable(name, known))

    def _reject_unknown_in(self, name: str, value: Any) -> None:
        assert self._file is not None
        if isinstance(value, list) and name in self._known.get("", set()):
            return
        if name not in self._known or not isinstance(value, dict):
            sections = {*self._known, *self._known.get("", set())} - {""}
            origin = self._file.origin(*name.split("."))
            if name not in sections:
                self._problems.append(_unknown(origin, name, sections))
            return
        for field, inner in value.items():
            if f"{name}.{field}" in self._known:
                self._reject_unknown_in(f"{name}.{field}", inner)
            elif field not in self._known[name]:
                origin = self._file.origin(*name.split("."), field)
                self._problems.append(_unknown(origin, field, self._known[name]))


def _fields(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: hints[name] for name in names if name not in SECRET_FIELDS}


def _flag(section: str, field: str) -> str:
    """Return the flag of a field."""
    return FLAGS.get((section, field), f"--{field.replace('_', '-')}")


def _variable(section: str, field: str) -> str:
    """Return the environment variable of a field."""
    return f"HOLDFAST_{section.replace('.', '_')}_{field}".upper()


def _unknown(origin: Origin, name: str, known: "set[str] | Mapping[str, Any]") -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"{origin} is not a setting{hint}"


def _unknown_variable(name: str, known: set[str]) -> str:
    near = suggest_variables(name, known)
    hint = f"did you mean {' or '.join(near)}?" if near else SETTINGS_HELP
    return f"environment variable {name} is not a setting; {hint}"


def to_toml(value: Any) -> str:
    """Return a value as a configuration file writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{name} = {to_toml(item)}" for name, item in value.items())
        return f"{{ {inner} }}"
    return repr(value)


def convert(value: Any, hint: Any, origin: Origin) -> Any:
    """Convert a value to the type of its setting; text from the environment is parsed."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return convert_table(value, hint, origin)
    form, choices = get_origin(hint), get_args(hint)
    if form is Annotated:
        return _convert_number(value, choices[0], origin, f"a number {choices[1]}")
    if form in (Union, UnionType):
        inner = next(choice for choice in choices if choice is not NoneType)
        return None if value is None else convert(value, inner, origin)
    if form is Literal:
        if value in choices:
            return value
        raise InvalidSetting(
            f"{origin} must be one of {', '.join(map(str, choices))}, not {to_toml(value)}"
        )
    if form is tuple:
        items = value
        if isinstance(value, str) and origin.file is None:
            items = [item.strip() for item in value.split(",")] if value.strip() else []
        if not isinstance(items, list | tuple):
            raise InvalidSetting(f"{origin} must be a list, not {to_toml(value)}")
        return tuple(convert(item, choices[0], origin) for item in items)
    return _convert_plain(value, hint, origin)


def convert_table(
    value: Any,
    kind: type[SectionT],
    origin: Origin,
    finish: Callable[[SectionT], SectionT] = lambda section: section,
) -> SectionT:
    """Convert a table of the file to a section."""
    if not isinstance(value, dict):
        raise InvalidSetting(f"{origin} must be a table, not {to_toml(value)}")
    hints = _fields(kind)
    problems = [_unknown(origin.inside(name), name, hints) for name in value if name not in hints]
    fields = {k: (v, origin.inside(k)) for k, v in value.items() if k in hints}
    if not problems:
        return build(kind, fields, origin, finish)
    try:
        _convert_all(fields, hints)
    except InvalidSetting as exc:
        problems.append(exc.message)
    raise InvalidSetting("\n".join(problems))


def build(
    kind: type[SectionT],
    given: Mapping[str, SourcedValue],
    origin: Origin | None = None,
    finish: Callable[[SectionT], SectionT] = lambda section: section,
) -> SectionT:
    """Build a section; report its validation errors with their origin."""
    values = _convert_all(given, _fields(kind))
    try:
        section = with_absolute_paths(kind(**values), {name: at for name, (_, at) in given.items()})
        return finish(section)
    except TypeError as exc:
        missing = re.findall(r"'(\w+)'", str(exc))
        raise InvalidSetting(f"{origin} needs {', '.join(missing)}") from exc
    except InvalidSetting as exc:
        mentioned = [at for name, (_, at) in given.items() if _mentions(exc.message, name)]
        origins = [*mentioned, *([origin] if origin else []), *(at for _, at in given.values())]
        raise InvalidSetting(origins[0].locate(exc.message) if origins else exc.message) from exc


def _convert_all(given: Mapping[str, SourcedValue], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Convert every value; raise all that is wrong with them together."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, (value, at) in given.items():
        try:
            values[name] = convert(value, hints[name], at)
        except InvalidSetting as exc:
            problems.append(exc.message)
    if problems:
        raise InvalidSetting("\n".join(problems))
    return values


def _mentions(message: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", message) is not None


def _convert_plain(value: Any, hint: Any, origin: Origin) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
        raise InvalidSetting(f"{origin} must be true or false, not {to_toml(value)}")
    if hint is str:
        if isinstance(value, str):
            return value
        raise InvalidSetting(f"{origin} must be text, not {to_toml(value)}")
    return _convert_number(value, hint, origin, "a number")


def _convert_number(value: Any, hint: Any, origin: Origin, expected: str) -> Any:
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = int(value) if hint is int and not isinstance(value, float) else float(value)
            if isinstance(number, hint) and math.isfinite(number):
                return number
    except (OverflowError, ValueError):
        pass
    raise InvalidSetting(f"{origin} must be {expected}, not {to_toml(value)}")
