"""`holdfast sessions`: what there is, what was said, and a session's life under its key."""

from typing import Annotated, Literal

import typer

from holdfast.cli.client.gateway_client import Value, path_of
from holdfast.cli.commands.export_command import export
from holdfast.cli.commands.import_command import import_sessions
from holdfast.cli.options import JsonFlag, SessionName, UrlFlag, find_session, gateway
from holdfast.cli.output.formatting import say_items, say_session, say_sessions, say_story
from holdfast.cli.output.terminal import confirm, say, say_json

app = typer.Typer(help="Sessions: list, read, reset, export, import.", no_args_is_help=True)

Status = Literal["idle", "running", "retired"]
Limit = Annotated[int, typer.Option(min=0, help="How many at most; 0 for all.")]


@app.command("list")
def list_sessions(
    key: Annotated[str | None, typer.Option(help="Only this key's.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only those in this state.")] = None,
    generations: Annotated[
        bool, typer.Option("--generations", help="Retired generations too.")
    ] = False,
    limit: Limit = 20,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List sessions, newest first."""
    query = {
        "key": key,
        "status": status,
        "generations": "true" if generations or status == "retired" else None,
    }
    found = list(gateway(url).every("/v1/sessions", limit=limit, **query))
    if as_json:
        say_json(found)
    else:
        say_sessions(found)


@app.command()
def show(
    session: SessionName,
    turns: Annotated[int, typer.Option(min=0, help="Show the latest so many turns.")] = 20,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell a session's story: generations, turns, runs, heals, usage."""
    client = gateway(url)
    found = find_session(client, session)
    lived: list[Value] = [found]
    if found["key"] is not None:
        lived = list(client.every("/v1/sessions", key=found["key"], generations="true"))
        lived.sort(key=lambda one: int(one["generation"]))
    path = path_of("sessions", found["id"], "turns")
    latest = list(client.every(path, limit=turns, order="desc")) if turns else []
    latest.reverse()
    if as_json:
        say_json({"session": found, "generations": lived, "turns": latest})
    else:
        say_story(found, lived, latest)


@app.command()
def items(
    session: SessionName,
    log: Annotated[bool, typer.Option("--log", help="Hidden items too.")] = False,
    limit: Limit = 0,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what was said, oldest first."""
    client = gateway(url)
    path = path_of("sessions", find_session(client, session)["id"], "items")
    found = list(client.every(path, limit=limit, view="log" if log else None))
    if as_json:
        say_json(found)
    else:
        say_items(found, is_log=log)


@app.command()
def reset(
    session: SessionName,
    expect: Annotated[
        str | None, typer.Option(help="Do nothing unless this is the live session's id.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="A note, kept with the event.")] = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Retire the live generation and begin the next one; the old one stays."""
    client = gateway(url)
    found = find_session(client, session)
    body = {"expected_session_id": expect, "reason": reason}
    given = {name: value for name, value in body.items() if value is not None}
    _changed(client.post(path_of("sessions", found["id"], "reset"), given), as_json)


@app.command()
def restore(session: SessionName, url: UrlFlag = None, as_json: JsonFlag = False) -> None:
    """Make an old generation live again, and retire the one that was."""
    client = gateway(url)
    found = find_session(client, session)
    _changed(client.post(path_of("sessions", found["id"], "restore")), as_json)


@app.command()
def fork(
    session: SessionName,
    after: Annotated[
        str | None, typer.Option(help="Up to this item: its id or sequence number.")
    ] = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Begin a session of its own that shares this one's history."""
    client = gateway(url)
    found = find_session(client, session)
    item: str | int | None = int(after) if after is not None and after.isdecimal() else after
    body = {"after_item": item} if item is not None else {}
    _changed(client.post(path_of("sessions", found["id"], "fork"), body), as_json)


@app.command()
def delete(
    session: SessionName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    cascade: Annotated[bool, typer.Option("--cascade", help="Its forks too.")] = False,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Erase a session for good; nothing brings it back."""
    client = gateway(url)
    found = find_session(client, session)
    name = found["key"] or found["id"]
    confirm(f"Erase {found['item_count']} items of {name} for good?", is_sure=yes)
    path = path_of("sessions", found["id"]) + ("?cascade=true" if cascade else "")
    gone = client.delete(path)
    if as_json:
        say_json(gone)
    else:
        say(f"{found['id']} is erased")


app.command()(export)
app.command("import")(import_sessions)


def _changed(session: Value, as_json: bool) -> None:
    """Print a session as a change has left it."""
    if as_json:
        say_json(session)
    else:
        say_session(session)
