"""`holdfast approvals`: list the tool calls that wait for an approval, and answer them."""

from typing import Annotated, Any

import typer

from holdfast.cli.client.gateway_client import GatewayClient, api_path
from holdfast.cli.options import ConfigFlag, JsonFlag, UrlFlag, connect
from holdfast.cli.output.terminal import CommandFailed, print_json, print_line, print_table

app = typer.Typer(help="Approvals of tool calls.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Id or code of the approval.")]
PAGE = 1000
MAX_ARGUMENTS = 200
"""Characters of a call's arguments in the table; `--json` prints all of them."""


@app.command("list")
def list_approvals(
    key: Annotated[str | None, typer.Option(help="Only those of this session key.")] = None,
    session: Annotated[str | None, typer.Option(help="Only those of this session id.")] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List the tool calls that wait for an approval."""
    waiting = _pending(connect(url, config), key=key, session_id=session)
    if as_json:
        print_json(waiting)
        return
    rows = [
        (
            each["code"],
            each["id"],
            each["key"] or each["session_id"],
            f"{each['server_label']}.{each['name']}",
            _short(each["arguments"]),
        )
        for each in waiting
    ]
    print_table(("code", "id", "session", "tool", "arguments"), rows, empty="no pending approvals")


@app.command()
def allow(name: Name, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Allow a tool call."""
    _answer(connect(url, config), name, {"approve": True})


@app.command()
def deny(
    name: Name,
    reason: Annotated[str | None, typer.Option(help="What the model is told.")] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Deny a tool call."""
    _answer(connect(url, config), name, {"approve": False, "reason": reason})


def _pending(client: GatewayClient, **filters: str | None) -> list[dict[str, Any]]:
    """Return every approval that waits, from all pages."""
    approvals: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = client.get("/v1/approvals", limit=PAGE, after=after, **filters)
        approvals += page["data"]
        after = page.get("next_after")
        if after is None:
            return approvals


def _answer(client: GatewayClient, name: str, body: dict[str, Any]) -> None:
    waiting = _pending(client)
    named = [each for each in waiting if name == each["id"] or name.upper() == each["code"]]
    if len(named) > 1:
        raise CommandFailed(f"{len(named)} approvals have the code {name}; use the id")
    approval_id = named[0]["id"] if named else name
    answered = client.post(api_path("approvals", approval_id), body)
    verb = "allowed" if body["approve"] else "denied"
    print_line(f"{verb}; turn {answered['turn_id']} goes on")


def _short(arguments: str) -> str:
    return arguments if len(arguments) <= MAX_ARGUMENTS else f"{arguments[:MAX_ARGUMENTS]}…"
