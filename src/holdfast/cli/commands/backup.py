"""`holdfast backup`: write a consistent copy of the store while the gateway runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import ConfigFlag, JsonFlag, StoreFlag, check_output_file, store_settings
from holdfast.cli.output.masking import mask_url
from holdfast.cli.output.progress import Advance, progress
from holdfast.cli.output.terminal import CommandFailed, print_json, print_line

Copy = Callable[[Path, Advance], int]
"""Writes the file and returns its size."""
SIDE_FILES = ("-wal", "-shm", "-journal")
"""Files of SQLite beside the store: they hold what is not yet in it."""


def backup(
    target: Annotated[Path, typer.Argument(help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    config: ConfigFlag = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the store to a file and verify the copy; the store may be in use."""
    from holdfast.stores.open import check_known

    url = store_settings(config, store).store.url
    check_known(url)
    if url.startswith("postgres"):
        source, copy = "postgresql", _database_copy(url)
    elif url.startswith("sqlite:"):
        source, copy = _file_copy(url, target)
    else:
        raise CommandFailed(f"the store {mask_url(url)} has nothing to copy")
    check_output_file(target)
    if target.exists() and not force:
        raise CommandFailed(f"{target} exists; add --force to replace it")
    try:
        with progress("copying") as advance:
            size = copy(target, advance)
    except OSError as exc:
        if exc.filename is None or Path(exc.filename).parent != target.parent:
            raise
        # The error names the unfinished copy, which nobody asked for.
        raise CommandFailed(f"{target} cannot be written: {exc.strerror}") from exc
    if as_json:
        print_json({"source": source, "target": str(target), "bytes": size, "verified": True})
    else:
        print_line(f"{target}: {size / 1024:.0f} KiB, verified")


def _file_copy(url: str, target: Path) -> tuple[str, Copy]:
    from holdfast.stores.open import sqlite_path
    from holdfast.stores.sqlite.backup import back_up

    source = sqlite_path(url)
    if target.exists() and source.exists() and target.samefile(source):
        raise CommandFailed(f"{target} is the store itself")
    if target.resolve() in {Path(f"{source.resolve()}{suffix}") for suffix in SIDE_FILES}:
        raise CommandFailed(f"{target} is a file of the store; name another one")

    def copy(target: Path, advance: Advance) -> int:
        return back_up(source, target, lambda done, total: advance(f"of {total} pages: {done}"))

    return str(source), copy


def _database_copy(url: str) -> Copy:
    from holdfast.stores.inspect import inspect_store, wanted_columns
    from holdfast.stores.postgres.backup import dump

    inspection = asyncio.run(inspect_store(url))
    if inspection.is_bare or inspection.is_foreign:
        raise CommandFailed("the database has no store")
    if inspection.is_first_schema:
        raise CommandFailed(inspection.refusal or "the store cannot be used")
    # A store that is behind or ahead is copied too: an upgrade needs a backup first.
    is_current = not inspection.pending and inspection.refusal is None
    tables = set(wanted_columns()) if is_current else {"sessions"}
    return lambda target, advance: dump(url, tables, target, advance)
