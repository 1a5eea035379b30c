"""Numbered migrations, forward only. Words in braces are types that databases spell apart.

A store keeps which steps it has taken, each with its name: a step that it lacks is taken, and one
that we do not know is refused.
"""

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import NamedTuple

from holdfast.core.errors import SchemaTooNew, StoreError

CREATE_VERSIONS = (
    "create table if not exists schema_versions "
    "(version {int} primary key, name {text} not null, applied_at {real} not null)"
)
READ_VERSIONS = "select version, name from schema_versions"
ADD_VERSION = "insert into schema_versions (version, name, applied_at) values (?1, ?2, ?3)"


class Migration(NamedTuple):
    """One numbered step."""

    version: int
    name: str
    text: str

    def statements(self, dialect: Mapping[str, str]) -> list[str]:
        """Return the step's statements in a database's own spelling."""
        text = re.sub(r"^\s*--.*$", "", self.text, flags=re.MULTILINE)
        return [part.strip().format_map(dialect) for part in text.split(";") if part.strip()]


def all_migrations() -> list[Migration]:
    """Return every step, oldest first."""
    found = []
    for file in files(__package__).iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return sorted(found)


def pending(applied: Iterable[tuple[int, str]], known: list[Migration]) -> list[Migration]:
    """Return the steps that a store still needs, oldest first; steps of others are refused."""
    names, newest = {step.version: step.name for step in known}, known[-1].version
    taken = dict(applied)
    for version, name in sorted(taken.items(), reverse=True):
        if version not in names:
            raise SchemaTooNew(
                f"the store's schema is at version {version}, this holdfast knows up to {newest}; "
                "start the newer version, or restore a backup made before the upgrade"
            )
        if name != names[version]:
            raise StoreError(
                f"version {version} of the store's schema is {name!r}, this holdfast has "
                f"{names[version]!r} there; start the build that wrote it"
            )
    return [step for step in known if step.version not in taken]
