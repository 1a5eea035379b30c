"""`holdfast sessions`: list, read, reset, fork and delete sessions."""

from typing import Annotated, Literal

import typer

from holdfast.cli.client.gateway_client import Value, api_path
from holdfast.cli.commands.export_sessions import export
from holdfast.cli.commands.import_sessions import import_sessions
from holdfast.cli.options import ConfigFlag, JsonFlag, SessionName, UrlFlag, connect, find_session
from holdfast.cli.output.formatting import (
    print_items,
    print_session,
    print_session_details,
    print_sessions,
)
from holdfast.cli.output.terminal import confirm, print_json, print_line

app = typer.Typer(help="Sessions: list, read, reset, export, import.", no_args_is_help=True)

Status = Literal["idle", "running", "retired"]
Limit = Annotated[int, typer.Option(min=0, help="Maximum number; 0 for all.")]


@app.command("list")
def list_sessions(
    key: Annotated[str | None, typer.Option(help="Only sessions of this key.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only sessions in this state.")] = None,
    generations: Annotated[
        bool, typer.Option("--generations", help="Include retired generations.")
    ] = False,
    limit: Limit = 20,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List sessions by last activity, latest first."""
    query = {
        "key": key,
        "status": status,
        "generations": "true" if generations or status == "retired" else None,
    }
    client = connect(url, config)
    sessions = list(client.list_all("/v1/sessions", limit=limit, sort="activity", **query))
    if as_json:
        print_json(sessions)
    else:
        print_sessions(sessions)


@app.command()
def show(
    session: SessionName,
    turns: Annotated[int, typer.Option(min=0, help="Number of latest turns.")] = 20,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a session with its generations, turns, runs, heals and usage."""
    client = connect(url, config)
    view = find_session(client, session)
    generations: list[Value] = [view]
    if view["key"] is not None:
        generations = list(client.list_all("/v1/sessions", key=view["key"], generations="true"))
        generations.sort(key=lambda generation: int(generation["generation"]))
    path = api_path("sessions", view["id"], "turns")
    latest = list(client.list_all(path, limit=turns, order="desc")) if turns else []
    latest.reverse()
    if as_json:
        print_json({"session": view, "generations": generations, "turns": latest})
    else:
        print_session_details(view, generations, latest)


@app.command()
def items(
    session: SessionName,
    log: Annotated[bool, typer.Option("--log", help="Include hidden items.")] = False,
    limit: Limit = 0,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the items of a session, oldest first."""
    client = connect(url, config)
    path = api_path("sessions", find_session(client, session)["id"], "items")
    entries = list(client.list_all(path, limit=limit, view="log" if log else None))
    if as_json:
        print_json(entries)
    else:
        print_items(entries, is_log=log)


@app.command()
def reset(
    session: SessionName,
    expect: Annotated[
        str | None, typer.Option(help="Do nothing unless this is the live session's id.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Note stored with the event.")] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Retire the live generation and start the next one; the old one stays."""
    client = connect(url, config)
    view = find_session(client, session)
    body = {"expected_session_id": expect, "reason": reason}
    fields = {name: value for name, value in body.items() if value is not None}
    _print_changed(client.post(api_path("sessions", view["id"], "reset"), fields), as_json)


@app.command()
def restore(
    session: SessionName,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make an old generation live again, and retire the live one."""
    client = connect(url, config)
    view = find_session(client, session)
    _print_changed(client.post(api_path("sessions", view["id"], "restore")), as_json)


@app.command()
def fork(
    session: SessionName,
    after: Annotated[
        str | None, typer.Option(help="Last shared item: its id or sequence number.")
    ] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a session that shares this one's history."""
    client = connect(url, config)
    view = find_session(client, session)
    item: str | int | None = int(after) if after is not None and after.isdecimal() else after
    body = {"after_item": item} if item is not None else {}
    _print_changed(client.post(api_path("sessions", view["id"], "fork"), body), as_json)


@app.command()
def delete(
    session: SessionName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    cascade: Annotated[bool, typer.Option("--cascade", help="Delete its forks too.")] = False,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete a session for good; it cannot be restored."""
    client = connect(url, config)
    view = find_session(client, session)
    name = view["key"] or view["id"]
    confirm(f"Delete {view['item_count']} items of {name} for good?", is_confirmed=yes)
    path = api_path("sessions", view["id"]) + ("?cascade=true" if cascade else "")
    deleted = client.delete(path)
    if as_json:
        print_json(deleted)
    else:
        print_line(f"{view['id']} is deleted")


app.command()(export)
app.command("import")(import_sessions)


def _print_changed(session: Value, as_json: bool) -> None:
    """Print a session after a change."""
    if as_json:
        print_json(session)
    else:
        print_session(session)
