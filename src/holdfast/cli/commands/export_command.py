"""`holdfast sessions export`: sessions as files, from a gateway."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from holdfast.cli.client.gateway_client import GatewayClient, Value, path_of
from holdfast.cli.options import UrlFlag, find_session, gateway
from holdfast.cli.output.progress import Advance, progress, unseen
from holdfast.cli.output.terminal import CommandFailed, printable
from holdfast.transfer.export_formats import Form, heading, lines, markdown, openai_items


def export(
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION]...", help="Ids or keys.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session.")] = False,
    generations: Annotated[
        bool, typer.Option("--generations", help="Retired generations too.")
    ] = False,
    form: Annotated[
        Form, typer.Option("--format", help="Lines with lineage, Markdown, or model input.")
    ] = "jsonl",
    output: Annotated[Path | None, typer.Option(help="A file; else standard output.")] = None,
    url: UrlFlag = None,
) -> None:
    """Write sessions out: with their whole log, for people, or as a model's input."""
    names = sessions or []
    if bool(names) == everything:
        raise CommandFailed("name sessions to export, or say --all", exit_code=2)
    client = gateway(url)
    found = _chosen(client, names, generations)
    if names or form == "openai":
        chosen = list(found)
        if form == "openai" and len(chosen) != 1:
            raise CommandFailed("--format openai is the input of one session", exit_code=2)
        found = iter(chosen)
    with _written(output) as file, _counted(file) as advance:
        count = _write(client, found, form, file, advance)
    if output is not None:
        print(f"{count} session(s) written to {output}", file=sys.stderr, flush=True)


@contextmanager
def _counted(file: TextIO) -> Iterator[Advance]:
    """Show progress, except where the export itself is shown."""
    if file.isatty():
        yield unseen
        return
    with progress("exporting") as advance:
        yield advance


def _chosen(client: GatewayClient, names: list[str], generations: bool) -> Iterator[Value]:
    flag = "true" if generations else None
    if not names:
        yield from client.every("/v1/sessions", order="asc", generations=flag)
    for name in names:
        session = find_session(client, name)
        if generations and session["key"] is not None:
            yield from client.every(
                "/v1/sessions", order="asc", key=session["key"], generations=flag
            )
        else:
            yield session


def _write(
    client: GatewayClient, found: Iterator[Value], form: Form, file: TextIO, advance: Advance
) -> int:
    count = 0
    # On a terminal nothing that was said may steer it; a file or a pipe gets every byte.
    shown = (lambda line: printable(line, keep="\n\t")) if file.isatty() else str
    if form == "jsonl":
        print(heading(), file=file)
    for session in found:
        if form == "markdown" and count:
            print("\n---\n", file=file)
        for line in _lines_of(client, session, form):
            print(shown(line), file=file)
        count += 1
        advance(session["key"] or session["id"])
    return count


def _lines_of(client: GatewayClient, session: Value, form: Form) -> Iterator[str]:
    entries = client.every(path_of("sessions", session["id"], "items"), view="log")
    match form:
        case "openai":
            yield openai_items(entries)
        case "markdown":
            yield from markdown(session, entries)
        case _:
            turns = client.every(path_of("sessions", session["id"], "turns"))
            yield from lines(session, entries, turns)


@contextmanager
def _written(output: Path | None) -> Iterator[TextIO]:
    """Open where to write; a file is there whole, or not at all."""
    if output is None:
        yield sys.stdout
        return
    if output.is_dir():
        raise CommandFailed(f"{output} is a folder; name a file")
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        unfinished.replace(output)
    except OSError as exc:
        if exc.filename != str(unfinished):
            raise
        raise CommandFailed(f"{output} cannot be written: {exc.strerror}") from exc
    finally:
        unfinished.unlink(missing_ok=True)
