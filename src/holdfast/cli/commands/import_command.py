"""`holdfast sessions import`: sessions of other places, taken over into a store."""

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.cli.options import JsonFlag, StoreFlag
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import CommandFailed, complain, say, say_json, say_table

SourceForm = Literal["auto", "holdfast", "openclaw", "agents", "chat"]

MEANINGS = {
    "added": "taken over",
    "set_aside": "kept as a retired generation: the key has a life of its own here",
    "extended": "gained what is new since the last import",
    "unchanged": "here already",
    "erased": "erased here, and not brought back",
    "differs": "left alone: it was continued here, or is not what was taken over before",
    "unusable": "its key cannot be one",
}


def import_sessions(
    path: Annotated[Path, typer.Argument(help="A file, a database, or a folder of OpenClaw's.")],
    form: Annotated[
        SourceForm, typer.Option("--from", help="The format; else found out by looking.")
    ] = "auto",
    key: Annotated[str | None, typer.Option(help="The key of a file of chat messages.")] = None,
    prefix: Annotated[str, typer.Option(help="Put this before every key.")] = "",
    tenant: Annotated[str, typer.Option(help="Whose sessions they become.")] = "default",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = (
        False
    ),
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Take sessions over: again and again gives nothing twice, and undoes nothing."""
    report, unread = asyncio.run(_import(path, form, key, prefix, tenant, dry_run, store))
    counts = Counter(str(one["status"]) for one in report)
    if as_json:
        say_json({"dry_run": dry_run, "counts": counts, "unread": unread, "sessions": report})
    else:
        _tell(report, counts, dry_run)
    for problem in unread:
        complain(problem)
    if unread or counts["unusable"]:
        raise typer.Exit(1)


def _tell(report: list[dict[str, Any]], counts: Counter[str], dry_run: bool) -> None:
    rows = [
        (one["session_id"], one["key"], one["status"], one["turns"], one["items"], one["added"])
        for one in report
    ]
    columns = ("id", "key", "status", "turns", "items", "added")
    say_table(columns, rows, empty="nothing to import", spare=("turns", "items"))
    say()
    for status, count in sorted(counts.items()):
        say(f"{count} {status}: {MEANINGS[status]}")
    if dry_run:
        say("this was a dry run; nothing was written")
    for one in report:
        for problem in one["problems"]:
            complain(f"{one['key'] or one['session_id']}: {problem}")


async def _import(
    path: Path,
    form: SourceForm,
    key: str | None,
    prefix: str,
    tenant: str,
    dry_run: bool,
    store: str | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    from holdfast.app import open_configured_store
    from holdfast.core.ids import read_tenant
    from holdfast.settings import load
    from holdfast.transfer.import_formats import read_source
    from holdfast.transfer.importer import Taking

    owner = read_tenant(tenant)
    lives = read_source(path, form, key)
    settings = load(flags={"store": {"url": store}})
    if dry_run and not await _is_there(settings.store.url):
        # A store that is not there is an empty one; to look must not make it.
        settings = load(flags={"store": {"url": "memory:"}})
    opened = await open_configured_store(settings)
    try:
        taking = Taking(opened, owner, prefix=prefix, is_dry_run=dry_run)
        report: list[dict[str, Any]] = []
        with progress("importing") as advance:
            async for taken in taking.take(lives):
                report.append(asdict(taken))
                advance(taken.key or taken.session_id)
        return report, taking.unread
    finally:
        await opened.close()


async def _is_there(url: str) -> bool:
    """Whether there is a store, with a schema that can be looked into without changing it."""
    from holdfast.stores.inspect import look_at

    seen = await look_at(url)
    if not seen.exists or seen.is_bare:
        return False
    if seen.pending:
        raise CommandFailed(
            f"a dry run changes nothing, and the store lacks {len(seen.pending)} step(s) of its "
            "schema; `holdfast doctor --fix` takes them"
        )
    return True
