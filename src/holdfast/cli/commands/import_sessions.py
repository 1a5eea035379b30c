"""`holdfast sessions import`: import sessions from other systems into a store."""

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli.options import ConfigFlag, JsonFlag, StoreFlag, store_settings
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import (
    CommandFailed,
    print_error,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from holdfast.settings import Settings

SourceFormat = Literal["auto", "holdfast", "openclaw", "agents", "chat"]

MEANINGS = {
    "added": "imported",
    "set_aside": "imported as a retired generation: the key has its own live session here",
    "extended": "extended with what is new since the last import",
    "unchanged": "imported before, unchanged",
    "erased": "deleted here and not restored",
    "differs": "skipped: continued here, or changed at the source since the last import",
    "unusable": "skipped: the key is invalid",
}


def import_sessions(
    path: Annotated[Path, typer.Argument(help="File, database, or OpenClaw folder.")],
    source_format: Annotated[
        SourceFormat, typer.Option("--from", help="Format; default: detected.")
    ] = "auto",
    key: Annotated[str | None, typer.Option(help="Key for a file of chat messages.")] = None,
    prefix: Annotated[str, typer.Option(help="Prefix for every key.")] = "",
    tenant: Annotated[str, typer.Option(help="Tenant that gets the sessions.")] = "default",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be done.")
    ] = False,
    config: ConfigFlag = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Import sessions. Safe to repeat; never overwrites."""
    from holdfast.core.ids import read_tenant
    from holdfast.transfer.import_formats import read_source

    owner = read_tenant(tenant)
    conversations = read_source(path, source_format, key)
    settings = store_settings(config, store)
    report, unread = asyncio.run(_import(settings, conversations, owner, prefix, dry_run))
    counts = Counter(str(session["status"]) for session in report)
    if as_json:
        print_json({"dry_run": dry_run, "counts": counts, "unread": unread, "sessions": report})
    else:
        _print_report(report, counts, dry_run)
    for problem in unread:
        print_error(problem)
    if unread or counts["unusable"]:
        raise typer.Exit(1)


def _print_report(report: list[dict[str, Any]], counts: Counter[str], dry_run: bool) -> None:
    columns = ("id", "key", "status", "turns", "items", "added")
    fields = ("session_id", *columns[1:])
    rows = [tuple(session[field] for field in fields) for session in report]
    print_table(columns, rows, empty="nothing to import", optional=("turns", "items"))
    print_line()
    for status, count in sorted(counts.items()):
        print_line(f"{count} {status}: {MEANINGS[status]}")
    if dry_run:
        print_line("dry run: nothing was written")
    for session in report:
        for problem in session["problems"]:
            print_error(f"{session['key'] or session['session_id']}: {problem}")


async def _import(
    settings: "Settings", conversations: Any, tenant: Any, prefix: str, dry_run: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    from holdfast.app import open_configured_store
    from holdfast.transfer.importer import Importer

    if dry_run and not await _store_exists(settings.store.url):
        # A dry run must not create the store; an empty one gives the same report.
        settings = _in_memory(settings)
    store = await open_configured_store(settings)
    try:
        importer = Importer(store, tenant, prefix=prefix, is_dry_run=dry_run)
        report: list[dict[str, Any]] = []
        with progress("importing") as advance:
            async for imported in importer.run(conversations):
                report.append(asdict(imported))
                advance(imported.key or imported.session_id)
        return report, importer.unread
    finally:
        await store.close()


def _in_memory(settings: "Settings") -> "Settings":
    from dataclasses import replace

    from holdfast.settings import StoreSettings

    return replace(settings, store=StoreSettings(url="memory:"))


async def _store_exists(url: str) -> bool:
    """Return whether there is a store that can be read without migrating it."""
    from holdfast.stores.inspect import inspect_store

    inspection = await inspect_store(url)
    if not inspection.exists or inspection.is_bare:
        return False
    if inspection.refusal is not None:
        where = f"{inspection.path}: " if inspection.path else ""
        raise CommandFailed(f"{where}{inspection.refusal}")
    if inspection.pending:
        raise CommandFailed(
            f"a dry run changes nothing, and the store needs {len(inspection.pending)} "
            "migration(s); run `holdfast doctor --fix` first"
        )
    return True
