"""`holdfast channels`, `holdfast outbox` and `holdfast send`: chat platforms and their messages."""

import base64
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.client.gateway_client import api_path
from holdfast.cli.commands.automation import channel_setup
from holdfast.cli.options import ConfigFlag, JsonFlag, UrlFlag, connect
from holdfast.cli.output.terminal import print_json, print_line, print_table

app = typer.Typer(help="Channels: state, set-up and pairings.", no_args_is_help=True)
outbox = typer.Typer(help="The outbox: messages that are to be sent.", no_args_is_help=True)
ChannelName = Annotated[str, typer.Argument(help="Name of the channel.")]
MessageId = Annotated[str, typer.Argument(help="Id of the message, as `outbox list` shows it.")]


@app.command("list")
def list_channels(
    config: ConfigFlag = None, url: UrlFlag = None, as_json: JsonFlag = False
) -> None:
    """List the channels of a gateway with what they do."""
    listed = connect(url, config).get("/v1/channels")["data"]
    if as_json:
        print_json(listed)
        return
    rows = [
        (
            channel["name"],
            channel["kind"],
            channel["state"],
            _counts(channel["outbox"]),
            _counts(channel["received"]),
        )
        for channel in listed
    ]
    print_table(("name", "kind", "state", "outbox", "received"), rows, empty="no channels")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"


app.command("add")(channel_setup.add)


@app.command("test")
def check_channel(
    name: ChannelName, config: ConfigFlag = None, url: UrlFlag = None, as_json: JsonFlag = False
) -> None:
    """Ask the platform of a channel whether it works; exit with 1 if it does not."""
    result = connect(url, config).post(api_path("channels", name, "check"))
    if as_json:
        print_json(result)
    elif result["is_ok"]:
        print_line(f"{name}: works, as {result['account']}")
    else:
        print_line(f"{name}: {result['error']}")
    if not result["is_ok"]:
        raise typer.Exit(1)


@app.command()
def pairings(
    name: ChannelName, config: ConfigFlag = None, url: UrlFlag = None, as_json: JsonFlag = False
) -> None:
    """List who asked to write to a channel."""
    listed = connect(url, config).get(api_path("channels", name, "pairings"))["data"]
    if as_json:
        print_json(listed)
        return
    rows = [
        (
            pairing["sender"],
            pairing["name"],
            pairing["code"],
            "yes" if pairing["approved_at"] else "no",
        )
        for pairing in listed
    ]
    print_table(("sender", "name", "code", "approved"), rows, empty="no pairings")


@app.command()
def approve(
    name: ChannelName,
    code: Annotated[str, typer.Argument(help="Code that the person was given.")],
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Let the person who was given a code write to a channel."""
    client = connect(url, config)
    row = client.post(api_path("channels", name, "pairings", code, "approve"))
    print_line(f"approved {row['sender']} ({row['name']})")


@app.command()
def revoke(
    name: ChannelName,
    sender: Annotated[str, typer.Argument(help="The platform's user id.")],
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Take back a pairing."""
    reply = connect(url, config).delete(api_path("channels", name, "pairings", sender))
    print_line("revoked" if reply["deleted"] else "there was no pairing")


@outbox.command("list")
def list_messages(
    channel: Annotated[str | None, typer.Option(help="Only messages of this channel.")] = None,
    state: Annotated[str | None, typer.Option(help="Only messages in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number.")] = 20,
    config: ConfigFlag = None,
    url: UrlFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List messages, the newest first."""
    page = connect(url, config).get("/v1/outbox", channel=channel, state=state, limit=limit)
    if as_json:
        print_json(page["data"])
        return
    rows = [_message_row(message) for message in page["data"]]
    print_table(("id", "channel", "chat", "state", "tries", "error"), rows, empty="no messages")


def _message_row(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        message["id"], message["channel"], message["chat"], message["state"],
        str(message["refusals"]),
        message["error"] or "",
    )  # fmt: skip


@outbox.command()
def retry(message: MessageId, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Send a dead message again."""
    row = connect(url, config).post(api_path("outbox", message, "retry"))
    print_line(f"{row['id']}: {row['state']}")


@outbox.command()
def drop(message: MessageId, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Drop a message that was not sent."""
    row = connect(url, config).post(api_path("outbox", message, "drop"))
    print_line(f"{row['id']}: {row['state']}")


def send(
    channel: ChannelName,
    to: Annotated[
        str, typer.Argument(help="The platform's id of the chat; write -- before a negative one.")
    ],
    text: Annotated[str, typer.Argument(help="Message, as Markdown.")] = "",
    file: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="File to send; may be repeated."),
    ] = None,
    thread: Annotated[str, typer.Option(help="Thread or topic in the chat.")] = "",
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Send a message to a chat, through the outbox."""
    body: dict[str, Any] = {"to": to, "text": text, "thread": thread}
    if file:
        body["files"] = [
            {"name": path.name, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in file
        ]
    reply = connect(url, config).post(api_path("channels", channel, "messages"), body)
    for message in reply["data"]:
        print_line(message["id"])
