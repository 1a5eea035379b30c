"""`holdfast sessions export`: write sessions of a gateway to a file."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from holdfast.cli.client.export_stream import (
    ExportInterrupted,
    Piece,
    SessionErased,
    StreamReached,
    StreamStarted,
    export_lines,
    export_pieces,
)
from holdfast.cli.client.gateway_client import GatewayClient, Value
from holdfast.cli.options import (
    ConfigFlag,
    UrlFlag,
    check_output_file,
    connect,
    find_session,
)
from holdfast.cli.output.export_file import open_export
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted export of all to this file.")
    ] = False,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Export sessions: the whole log, Markdown for people, or a model's input."""
    names = sessions or []
    if bool(names) == everything:
        raise CommandFailed("name the sessions to export or use --all, not both", exit_code=2)
    is_resumable = everything and export_format == "jsonl" and output is not None
    if resume and not is_resumable:
        raise CommandFailed("--resume needs --all, --output and the format jsonl", exit_code=2)
    if everything and export_format == "openai":
        raise CommandFailed("--format openai exports exactly one session", exit_code=2)
    client = connect(url, config)
    if is_resumable and output is not None:
        _export_all(client, output, resume=resume, generations=generations)
        return
    # Resolve every name before writing: an unknown one must not leave a partial file.
    resolved = list(_resolve(client, names, generations))
    if export_format == "openai" and len(resolved) != 1:
        raise CommandFailed("--format openai exports exactly one session", exit_code=2)
    with _open_output(output) as file, _export_progress(file) as advance:
        found = _named(client, resolved, advance) if names else _all(client, generations, advance)
        count = _write(found, export_format, file)
    if output is not None:
        print(f"{count} session(s) written to {output}", file=sys.stderr, flush=True)


def _export_all(client: GatewayClient, output: Path, *, resume: bool, generations: bool) -> None:
    """Copy the stream of all sessions to a file, which can be continued if this is interrupted."""
    check_output_file(output)
    count = 0
    try:
        with (
            open_export(output, resume=resume, generations=generations) as file,
            progress("exporting") as advance,
        ):
            for piece in _stream(client, generations, file.after, advance):
                if isinstance(piece, bytes):
                    file.write(piece)
                elif isinstance(piece, SessionErased):
                    file.drop(piece.session_id)
                elif isinstance(piece, StreamReached):
                    count = piece.sessions
            more = " more" if file.after is not None else ""
    except ExportInterrupted as exc:
        hint = f"; {count} session(s) are kept, continue with --resume" if count else ""
        raise CommandFailed(f"{exc.message}{hint}") from exc
    print(f"{count}{more} session(s) written to {output}", file=sys.stderr, flush=True)


def _stream(
    client: GatewayClient, generations: bool, after: str | None, advance: Advance
) -> Iterator[Piece]:
    """Yield the stream of all sessions, and show how far it is."""
    total = count = 0
    flag = "true" if generations else None
    for piece in export_pieces(client, generations=flag, after=after):
        if isinstance(piece, StreamStarted):
            total = piece.total
        elif isinstance(piece, StreamReached):
            # Sessions that were created meanwhile are exported too.
            advance(f"of {max(total, piece.sessions)}", piece.sessions - count)
            count = piece.sessions
        yield piece


@contextmanager
def _export_progress(file: TextIO) -> Iterator[Advance]:
    """Show progress, unless the export itself goes to the terminal."""
    if file.isatty():
        yield no_progress
        return
    with progress("exporting") as advance:
        yield advance


def _resolve(client: GatewayClient, names: list[str], generations: bool) -> Iterator[Value]:
    """Yield the sessions that are named, with all generations of their keys if asked."""
    for name in names:
        session = find_session(client, name)
        if generations and session["key"] is not None:
            yield from client.list_all(
                "/v1/sessions", order="asc", key=session["key"], generations="true"
            )
        else:
            yield session


def _named(
    client: GatewayClient, sessions: Iterable[Value], advance: Advance
) -> Iterator[Iterator[Value]]:
    """Yield the lines of each session."""
    for session in sessions:
        yield export_lines(client, session["id"])
        advance(session["key"] or session["id"])


def _all(client: GatewayClient, generations: bool, advance: Advance) -> Iterator[Iterable[Value]]:
    """Yield the lines of every session, each once it is complete."""
    rest, lines = b"", list[Value]()
    for piece in _stream(client, generations, None, advance):
        if isinstance(piece, SessionErased):
            lines = []
        if not isinstance(piece, bytes):
            continue
        *whole, rest = (rest + piece).split(b"\n")
        for value in map(json.loads, whole):
            if value["object"] == "session" and lines:
                yield lines
                lines = []
            lines.append(value)
    if lines:
        yield lines


def _write(sessions: Iterator[Iterable[Value]], export_format: ExportFormat, file: TextIO) -> int:
    count = 0
    # Escape control characters on a terminal only; a file or a pipe gets every byte.
    escape = (lambda line: printable(line, keep="\n\t")) if file.isatty() else str
    for lines in sessions:
        # The first line is read before the header: an error must not follow a partial export.
        written = _session_lines(iter(lines), export_format)
        first = next(written)
        if export_format == "jsonl" and not count:
            print(export_header(), file=file)
        if export_format == "markdown" and count:
            print("\n---\n", file=file)
        print(escape(first), file=file)
        for line in written:
            print(escape(line), file=file)
        count += 1
    if export_format == "jsonl" and not count:
        print(export_header(), file=file)
    return count


def _session_lines(lines: Iterator[Value], export_format: ExportFormat) -> Iterator[str]:
    if export_format == "jsonl":
        yield from jsonl(lines)
        return
    session = next(lines)
    entries = (line for line in lines if line["object"] == "session.item")
    if export_format == "openai":
        yield openai_items(entries)
    else:
        yield from markdown(session, entries)


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
