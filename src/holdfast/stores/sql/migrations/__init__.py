"""Numbered migrations, forward only. Words in braces are types that databases spell differently.

A store records the steps that were applied, each with its name. Missing steps are applied; a store
with an unknown step is rejected, as is a store of the first schema, which was never released.
"""

import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.errors import SchemaTooNew, SchemaTooOld, StoreError

CREATE_VERSIONS = (
    "create table if not exists schema_versions "
    "(version {int} primary key, name {text} not null, applied_at {real} not null)"
)
VERSION_COLUMNS = frozenset({"version", "name"})
"""Columns that Holdfast's table `schema_versions` always has."""
READ_VERSIONS = "select version, name from schema_versions"
ADD_VERSION = "insert into schema_versions (version, name, applied_at) values (?1, ?2, ?3)"
FIRST_SCHEMA = (
    "kernel", "journals", "api_keys", "feed", "completions", "trails", "item_places",
)  # fmt: skip
"""The steps of the schema before the log; their numbers were reused."""


class Migration(NamedTuple):
    """One numbered step."""

    version: int
    name: str
    text: str

    def statements(self, dialect: Mapping[str, str]) -> list[str]:
        """Return the step's statements in a database's own spelling."""
        text = re.sub(r"^\s*--.*$", "", self.text, flags=re.MULTILINE)
        spelled = (part.strip().format_map(dialect) for part in text.split(";"))
        return [statement for statement in spelled if statement]


def all_migrations() -> list[Migration]:
    """Return every step, oldest first."""
    migrations = []
    for file in Path(__file__).parent.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            migrations.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return sorted(migrations)


def installation(dialect: Mapping[str, str], now: float) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the statements that create the newest schema in an empty database."""
    statements: list[tuple[str, tuple[Any, ...]]] = [(CREATE_VERSIONS.format_map(dialect), ())]
    for step in all_migrations():
        statements += [(text, ()) for text in step.statements(dialect)]
        statements.append((ADD_VERSION, (step.version, step.name, now)))
    return statements


def table_names() -> set[str]:
    """Return the tables that all steps create, without the one that lists the steps."""
    text = "".join(step.text for step in all_migrations())
    return set(re.findall(r"^create table (\w+)", text, re.MULTILINE))


def taken_names(found: Mapping[str, Set[str]], applied: Iterable[tuple[int, str]]) -> list[str]:
    """Return the tables of others that have names of ours, in a schema that may have other tables.

    `found` has the columns of each table.
    """
    versions = found.get("schema_versions")
    if versions is not None and not versions >= VERSION_COLUMNS:
        return ["schema_versions"]
    return [] if any(applied) else sorted(table_names() & found.keys())


def is_first_schema(applied: Iterable[tuple[int, str]]) -> bool:
    """Whether a store has the schema before the log."""
    return dict(applied).get(1) == FIRST_SCHEMA[0]


def reject_first_schema(applied: Iterable[tuple[int, str]]) -> None:
    """Refuse a store that has the schema before the log."""
    if is_first_schema(applied):
        raise SchemaTooOld(
            "the store was written by an earlier version of holdfast; export its sessions with "
            "that version (`sessions export --all`) and import them into a new store"
        )


def pending(applied: Iterable[tuple[int, str]], known: list[Migration]) -> list[Migration]:
    """Return the steps that a store still needs, oldest first; reject unknown applied steps."""
    names, newest = {step.version: step.name for step in known}, known[-1].version
    applied_names = dict(applied)
    reject_first_schema(applied_names.items())
    for version, name in sorted(applied_names.items(), reverse=True):
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
    return [step for step in known if step.version not in applied_names]
