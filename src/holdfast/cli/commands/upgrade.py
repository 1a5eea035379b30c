"""`holdfast upgrade`: copy a store of an earlier version into a new one."""

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options import JsonFlag
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import print_json, print_line

STORE = "sqlite:///file.db or postgresql://…"


def upgrade(
    old: Annotated[str, typer.Argument(metavar="OLD", help=f"The store to copy: {STORE}")],
    new: Annotated[str, typer.Argument(metavar="NEW", help=f"An empty place for it: {STORE}")],
    as_json: JsonFlag = False,
) -> None:
    """Copy a store of an earlier version into a new one; the old one stays as it is."""
    import msgspec

    from holdfast.stores.upgrade.copy import upgrade as copy_store

    with progress("copying") as advance:
        copied = asyncio.run(copy_store(old, new, lambda total: advance(f"of {total} sessions")))
    if as_json:
        print_json(msgspec.to_builtins(copied))
    else:
        print_line(
            f"{copied.sessions} sessions, {copied.turns} turns, {copied.items} items and "
            f"{copied.api_keys} API keys copied"
        )
