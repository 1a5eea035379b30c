"""`holdfast backup`: a consistent copy of the store, while the gateway runs."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import JsonFlag, StoreFlag
from holdfast.cli.progress import progress
from holdfast.cli.terminal import CommandFailed, say, say_json


def backup(
    target: Annotated[Path, typer.Argument(help="The file to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the store into a file, verified; it may be in use meanwhile."""
    from holdfast.settings import load
    from holdfast.stores.backup import back_up
    from holdfast.stores.opening import sqlite_path

    url = load(config, flags={"store": {"url": store}}).store.url
    if url.startswith("postgres"):
        raise CommandFailed(
            "a PostgreSQL store is backed up by PostgreSQL: pg_dump --format=custom --file="
            f"{target} DATABASE_URL, or a base backup with WAL archiving"
        )
    if not url.startswith("sqlite:"):
        raise CommandFailed(f"a store in {url} has nothing to copy")
    source = sqlite_path(url)
    if target.is_dir():
        raise CommandFailed(f"{target} is a folder; name a file")
    if target.exists() and not force:
        raise CommandFailed(f"{target} exists; say --force to replace it")
    if target.exists() and target.samefile(source):
        raise CommandFailed(f"{target} is the store itself")
    with progress("copying") as advance:
        size = back_up(source, target, lambda done, total: advance(f"of {total} pages: {done}"))
    if as_json:
        say_json({"source": str(source), "target": str(target), "bytes": size, "verified": True})
    else:
        say(f"{target}: {size / 1024:.0f} KiB, verified")
