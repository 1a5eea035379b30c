"""`holdfast backup`: a consistent copy of the store, while the gateway runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import JsonFlag, StoreFlag
from holdfast.cli.output.progress import Advance, progress
from holdfast.cli.output.terminal import CommandFailed, say, say_json

Copy = Callable[[Path, Advance], int]
"""Makes the file, and returns its size."""


def backup(
    target: Annotated[Path, typer.Argument(help="The file to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the store into a file, verified; it may be in use meanwhile."""
    from holdfast.settings import load
    from holdfast.stores.open import check_known

    url = load(config, flags={"store": {"url": store}}).store.url
    check_known(url)
    if url.startswith("postgres"):
        source, copy = "postgresql", _copy_of_database(url)
    elif url.startswith("sqlite:"):
        source, copy = _copy_of_file(url, target)
    else:
        raise CommandFailed(f"a store in {url} has nothing to copy")
    if target.is_dir():
        raise CommandFailed(f"{target} is a folder; name a file")
    if target.exists() and not force:
        raise CommandFailed(f"{target} exists; say --force to replace it")
    with progress("copying") as advance:
        size = copy(target, advance)
    if as_json:
        say_json({"source": source, "target": str(target), "bytes": size, "verified": True})
    else:
        say(f"{target}: {size / 1024:.0f} KiB, verified")


def _copy_of_file(url: str, target: Path) -> tuple[str, Copy]:
    from holdfast.stores.open import sqlite_path
    from holdfast.stores.sqlite.backup import back_up

    source = sqlite_path(url)
    if target.exists() and source.exists() and target.samefile(source):
        raise CommandFailed(f"{target} is the store itself")

    def copy(target: Path, advance: Advance) -> int:
        return back_up(source, target, lambda done, total: advance(f"of {total} pages: {done}"))

    return str(source), copy


def _copy_of_database(url: str) -> Copy:
    from holdfast.stores.inspect import look_at, wanted_columns
    from holdfast.stores.postgres.backup import dump

    seen = asyncio.run(look_at(url))
    if seen.is_bare:
        raise CommandFailed("there is no store in the database")
    # One of another version is copied too: that is what a backup before an upgrade is for.
    is_current = not seen.pending and seen.refusal is None
    tables = set(wanted_columns()) if is_current else {"sessions"}
    if seen.is_first_schema:
        tables |= {"turns", "items"}
    return lambda target, advance: dump(url, tables, target, advance)
