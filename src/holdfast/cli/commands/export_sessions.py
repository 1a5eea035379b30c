"""`holdfast sessions export`: write sessions of a gateway to a file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, TextIO

import typer

from holdfast.cli.client.gateway_client import GatewayClient, Value, api_path
from holdfast.cli.options import (
    ConfigFlag,
    UrlFlag,
    check_output_file,
    connect,
    find_session,
)
from holdfast.cli.output.progress import Advance, no_progress, progress
from holdfast.cli.output.terminal import CommandFailed, printable
from holdfast.transfer.export_formats import (
    ExportFormat,
    export_header,
    jsonl,
    markdown,
    openai_items,
)


def export(
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION]...", help="Ids or keys.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Export every session.")] = False,
    generations: Annotated[
        bool, typer.Option("--generations", help="Include retired generations.")
    ] = False,
    export_format: Annotated[
        ExportFormat,
        typer.Option("--format", help="Whole log as JSON lines, Markdown, or model input."),
    ] = "jsonl",
    output: Annotated[Path | None, typer.Option(help="File; default: standard output.")] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Export sessions: the whole log, Markdown for people, or a model's input."""
    names = sessions or []
    if bool(names) == everything:
        raise CommandFailed("name the sessions to export or use --all, not both", exit_code=2)
    client = connect(url, config)
    selected = _select(client, names, generations)
    if names or export_format == "openai":
        # Resolve every name before writing: an unknown one must not leave a partial file.
        resolved = list(selected)
        if export_format == "openai" and len(resolved) != 1:
            raise CommandFailed("--format openai exports exactly one session", exit_code=2)
        selected = iter(resolved)
    with _open_output(output) as file, _export_progress(file) as advance:
        count = _write(client, selected, export_format, file, advance)
    if output is not None:
        print(f"{count} session(s) written to {output}", file=sys.stderr, flush=True)


@contextmanager
def _export_progress(file: TextIO) -> Iterator[Advance]:
    """Show progress, unless the export itself goes to the terminal."""
    if file.isatty():
        yield no_progress
        return
    with progress("exporting") as advance:
        yield advance


def _select(client: GatewayClient, names: list[str], generations: bool) -> Iterator[Value]:
    flag = "true" if generations else None
    if not names:
        yield from client.list_all("/v1/sessions", order="asc", generations=flag)
    for name in names:
        session = find_session(client, name)
        if generations and session["key"] is not None:
            yield from client.list_all(
                "/v1/sessions", order="asc", key=session["key"], generations=flag
            )
        else:
            yield session


def _write(
    client: GatewayClient,
    sessions: Iterator[Value],
    export_format: ExportFormat,
    file: TextIO,
    advance: Advance,
) -> int:
    count = 0
    # Escape control characters on a terminal only; a file or a pipe gets every byte.
    escape = (lambda line: printable(line, keep="\n\t")) if file.isatty() else str
    # Fetch the first session before the header: an error must not follow a partial export.
    first = list(islice(sessions, 1))
    if export_format == "jsonl":
        print(export_header(), file=file)
    for session in chain(first, sessions):
        if export_format == "markdown" and count:
            print("\n---\n", file=file)
        for line in _session_lines(client, session, export_format):
            print(escape(line), file=file)
        count += 1
        advance(session["key"] or session["id"])
    return count


def _session_lines(
    client: GatewayClient, session: Value, export_format: ExportFormat
) -> Iterator[str]:
    entries = client.list_all(api_path("sessions", session["id"], "items"), view="log")
    match export_format:
        case "openai":
            yield openai_items(entries)
        case "markdown":
            yield from markdown(session, entries)
        case _:
            turns = client.list_all(api_path("sessions", session["id"], "turns"))
            yield from jsonl(session, entries, turns)


@contextmanager
def _open_output(output: Path | None) -> Iterator[TextIO]:
    """Open the output; a file appears complete or not at all, readable by its owner only."""
    if output is None:
        yield sys.stdout
        return
    check_output_file(output)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            yield file
        temporary.replace(output)
    except OSError as exc:
        if exc.filename != str(temporary):
            raise
        raise CommandFailed(f"{output} cannot be written: {exc.strerror}") from exc
    finally:
        temporary.unlink(missing_ok=True)
