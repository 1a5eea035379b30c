"""Generate the reference page of the configuration file from the settings classes."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.channels.settings import ChannelSettings
from holdfast.providers.settings import TimeoutSettings, UpstreamSettings
from holdfast.schedules.settings import DeliverSettings, ScheduleSettings
from holdfast.settings import AccessKey, Settings
from holdfast.settings.reading import SECRET_FIELDS
from holdfast.tools.settings import McpSettings
from holdfast.webhooks.settings import WebhookSettings

PAGE = "docs/reference/configuration.md"

HEAD = """# Configuration file

Holdfast reads one TOML file, named by `--config` or `HOLDFAST_CONFIG`. Every field of a `[section]`
also has an environment variable, and some have a [flag](command-line.md). Flags override the
environment; the environment overrides the file. `holdfast config show` prints the settings in
effect, with secrets masked.

An unknown name or an invalid value is an error at start. The message names the file, the line and
the values that are allowed.

A relative path in the file (`store.url`, `retention.archive`, `workdir`, `credentials`, a `command`
with a slash) starts at the directory of the file, whatever the current directory is. In a flag or
an environment variable it starts at the current directory. Commands print the absolute path.

In an environment variable:

- Booleans are `true`, `1`, `yes`, `on` or `false`, `0`, `no`, `off`.
- Lists are separated by commas (`/new, /reset`). Spaces around an entry are ignored, and an empty
  variable is an empty list.

In the file, a list always has brackets, even with one entry.

`make docs` generates this page from the code. [Settings](settings.md) lists the same settings as
Python values.
"""

PEOPLE = """## `[people]`

One memory for one person over all channels: a name, and the person's accounts, such as
`michael = ["telegram:123", "slack:U1"]`. Session keys of direct chats then have the name in place
of the platform's user id.
"""
TABLES = ("upstreams", "keys", "mcp", "channels", "schedules", "webhooks", "people")
"""Fields of `Settings` that are not one section each."""
SECTIONS = {"reset": "sessions.reset"}
LONGEST_DEFAULT = 60
"""A longer text would make its table unreadable."""


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [HEAD]
    settings = Settings()
    for field in dataclasses.fields(Settings):
        if field.name in TABLES:
            continue
        name = SECTIONS.get(field.name, field.name)
        parts.append(_section(f"[{name}]", type(getattr(settings, field.name)), name))
    parts.append(_section("[[upstream]]", UpstreamSettings, None))
    parts.append(_section("timeouts of an [[upstream]]", TimeoutSettings, None))
    parts.append(_section("[[key]]", AccessKey, None))
    parts.append(_section("[[mcp]]", McpSettings, None))
    parts.append(_section("[[channel]]", ChannelSettings, None))
    parts.append(PEOPLE)
    parts.append(_section("[[schedule]]", ScheduleSettings, None))
    parts.append(_section("deliver of a [[schedule]]", DeliverSettings, None))
    parts.append(_section("[[webhook]]", WebhookSettings, None))
    return "\n".join(parts)


def _section(title: str, kind: type[Any], section: str | None) -> str:
    head = ["field", "type", "default", "meaning"]
    lines = [f"## `{title}`", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    meanings, hints = _meanings(kind), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in SECRET_FIELDS:
            continue
        row = [
            f"`{field.name}`",
            _type_name(hints[field.name]),
            _default(kind, field),
            meanings.get(field.name, ""),
        ]
        if section:
            variable = f"HOLDFAST_{section.replace('.', '_')}_{field.name}".upper()
            row[-1] = f"{row[-1]} Variable: `{variable}`."
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def _meanings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring under each field, by the field's name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body  # type: ignore[attr-defined]  # the source of a class
    found: dict[str, str] = {}
    for field, docstring in pairwise(body):
        has_docstring = isinstance(docstring, ast.Expr) and isinstance(
            docstring.value, ast.Constant
        )
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and has_docstring:
            found[field.target.id] = " ".join(str(docstring.value.value).split())
    return found


def _type_name(hint: Any) -> str:
    return ", ".join(_type_names(hint))


def _type_names(hint: Any) -> Iterator[str]:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from (f"`{choice}`" for choice in choices)
    elif origin in (Union, UnionType):
        for choice in choices:
            if choice is not NoneType:
                yield from _type_names(choice)
    elif origin is tuple:
        yield "list of " + " or ".join(f"{name}s" for name in _type_names(choices[0]))
    elif dataclasses.is_dataclass(hint):
        yield "table"
    else:
        yield {str: "string", int: "integer", float: "number", bool: "boolean"}.get(hint, "value")


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
        return "`[" + ", ".join(f'"{entry}"' for entry in value) + "]`"
    if isinstance(value, str) and len(value) > LONGEST_DEFAULT:
        return "a built-in text"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value}`" if isinstance(value, int) else f"`{value:g}`"


def write(root: Path) -> None:
    """Write the page into the repository."""
    (root / PAGE).write_text(page())
