"""Relative paths of the configuration: those in the file start at the file's directory.

A path of a flag or of an environment variable starts at the current directory, as in a shell.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from holdfast.core.errors import InvalidSetting
from holdfast.settings.files import Origin

SectionT = TypeVar("SectionT")
PathKind = Literal["path", "program", "store"]
PATH_FIELDS: dict[str, dict[str, PathKind]] = {
    "StoreSettings": {"url": "store"},
    "RetentionSettings": {"archive": "path"},
    "UpstreamSettings": {"command": "program", "workdir": "path", "credentials": "path"},
    "McpSettings": {"command": "program", "workdir": "path"},
}
"""Fields that name a file, by the class of their section."""


def with_absolute_paths(section: SectionT, origins: Mapping[str, Origin]) -> SectionT:
    """Return a section whose paths are absolute; `origins` has the fields that were given."""
    fields = PATH_FIELDS.get(type(section).__name__, {})
    changed: dict[str, str] = {}
    for name, kind in fields.items():
        value = getattr(section, name)
        if name in origins and value:
            changed[name] = _absolute(value, kind, _directory(origins[name]))
    values: Any = section
    return replace(values, **changed) if changed else section


def _directory(origin: Origin) -> Path:
    # A symbolic link counts where it is, not where it points.
    return origin.file.path.parent.resolve() if origin.file is not None else Path.cwd()


def _absolute(value: str, kind: PathKind, directory: Path) -> str:
    if kind == "store":
        from holdfast.stores.open import absolute_url

        return absolute_url(value, directory)
    if kind == "program" and "/" not in value:
        return value  # a name that is looked up in PATH
    try:
        return os.path.normpath(directory / Path(value).expanduser())
    except RuntimeError as exc:
        raise InvalidSetting(f"{value}: {exc}") from exc
