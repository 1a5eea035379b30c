"""The reference of the configuration file, written from the code that reads it."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.providers.settings import TimeoutSettings, UpstreamSettings
from holdfast.settings import AccessKey, Settings
from holdfast.settings.reading import SECRET_FIELDS

PAGE = "docs/reference/configuration.md"

HEAD = """# Configuration file

One TOML file, named with `--config` or `HOLDFAST_CONFIG`. Every field of a `[section]` also has an
environment variable, and some have a [flag](command-line.md): flags beat the environment, the
environment beats the file. `holdfast config show` prints what is in force, secrets masked. A value
that cannot be, or a name that does not exist, is refused at start with its file and line and what
may stand there. In a variable, true and false are also written `1`, `yes`, `on` and `0`, `no`,
`off`, and a list of texts is written with commas between them (`/new, /reset`): spaces around each
do not count, and an empty variable is an empty list. In the file a list has its brackets, even of
one text.

This page is written from the code by `make docs`. The same settings as values of the library:
[Settings](settings.md).
"""

SECTIONS = {"reset": "sessions.reset"}


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    settings = Settings()
    for field in dataclasses.fields(Settings):
        if field.name in ("upstreams", "keys"):
            continue
        name = SECTIONS.get(field.name, field.name)
        parts.append(_section(f"[{name}]", type(getattr(settings, field.name)), name))
    parts.append(_section("[[upstream]]", UpstreamSettings, None))
    parts.append(_section("timeouts of an [[upstream]]", TimeoutSettings, None))
    parts.append(_section("[[key]]", AccessKey, None))
    return "\n".join(parts)


def _section(title: str, kind: type[Any], section: str | None) -> str:
    head = ["field", "may be", "default", "meaning"] + (["variable"] if section else [])
    lines = [f"## `{title}`", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    meanings, hints = _meanings(kind), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in SECRET_FIELDS:
            continue
        row = [
            f"`{field.name}`",
            _may_be(hints[field.name]),
            _default(kind, field),
            meanings.get(field.name, ""),
        ]
        if section:
            variable = f"HOLDFAST_{section.replace('.', '_')}_{field.name}".upper()
            row.append(f"`{variable}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _meanings(kind: type[Any]) -> dict[str, str]:
    """Return what stands under each field, for people."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body  # type: ignore[attr-defined]  # it is the class we asked for
    found: dict[str, str] = {}
    for field, said in pairwise(body):
        is_said = isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_said:
            found[field.target.id] = " ".join(str(said.value.value).split())
    return found


def _may_be(hint: Any) -> str:
    return ", ".join(_words(hint))


def _words(hint: Any) -> Iterator[str]:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from (f"`{choice}`" for choice in choices)
    elif origin in (Union, UnionType):
        for choice in choices:
            if choice is not NoneType:
                yield from _words(choice)
    elif origin is tuple:
        yield "a list of " + " or ".join(_words(choices[0])).replace("text", "texts")
    elif dataclasses.is_dataclass(hint):
        yield "a table"
    else:
        yield {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(
            hint, "a value"
        )


def _default(kind: type[Any], field: "dataclasses.Field[Any]") -> str:
    if kind is type(Settings().store) and field.name == "url":
        return "a file in the user's data directory"
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value == () or dataclasses.is_dataclass(value):
        return "none" if not dataclasses.is_dataclass(value) else "as below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value}`" if isinstance(value, int) else f"`{value:g}`"


def write(root: Path) -> None:
    """Write the page."""
    (root / PAGE).write_text(page())
