"""Options that several commands share, and what they stand for."""

from typing import Annotated

import typer

from holdfast.cli.client.gateway_client import GatewayClient, Refused, Value, path_of
from holdfast.cli.output.terminal import CommandFailed
from holdfast.settings.target import find_target

UrlFlag = Annotated[
    str | None,
    typer.Option("--url", help="The gateway; else HOLDFAST_URL, else the one on this machine."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
StoreFlag = Annotated[
    str | None, typer.Option("--store", help="The store's URL; else as configured.")
]
SessionName = Annotated[str, typer.Argument(help="A session's id, or its key.")]


def gateway(url: str | None) -> GatewayClient:
    """Return the gateway that a command talks to."""
    return GatewayClient(find_target(url))


def find_session(client: GatewayClient, name: str) -> Value:
    """Return the session of an id or, if it is none, the live session of a key."""
    if name.startswith(("ses_", "conv_")):
        try:
            found: Value = client.get(path_of("sessions", "ses_" + name.partition("_")[2]))
        except Refused as exc:
            if exc.status != 404:
                raise
        else:
            return found
    listed = client.get("/v1/sessions", key=name)["data"]
    if not listed:
        raise CommandFailed(f"no session has the id or the key {name!r}")
    session: Value = listed[0]
    return session
