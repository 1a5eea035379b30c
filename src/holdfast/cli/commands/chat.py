"""`holdfast chat`: talk to a session in a terminal, through restarts of its gateway."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.client.conversation import Broken, Conversation, Told
from holdfast.cli.client.gateway_client import Refused, Unreachable
from holdfast.cli.options import UrlFlag, gateway
from holdfast.cli.output.formatting import say_items, say_session, tokens
from holdfast.cli.output.terminal import (
    CommandFailed,
    complain,
    console,
    is_terminal,
    printable,
    say,
)

PROMPT = "you: "
HELP = """/new [message]   begin the next generation of this key; the old one stays
/history         what was said
/status          the session, as it is now
/quit            leave; the session stays
"""


def chat(
    key: Annotated[str, typer.Argument(help="The conversation's key.")] = "me",
    model: Annotated[str | None, typer.Option(help="The model; else the first there is.")] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a gateway that went away.")
    ] = 120.0,
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    url: UrlFlag = None,
) -> None:
    """Talk to a session: it remembers, whoever asks and however often the gateway restarts."""
    from holdfast.settings import load

    client = gateway(url)
    if model is None:
        listed = client.get("/v1/models")["data"]
        if not listed:
            raise CommandFailed("the gateway names no model; say --model")
        model = str(listed[0]["id"])
    told = Conversation(client, key, model, patience_seconds=patience, on_wait=_say_waiting)
    triggers = load(config).reset.triggers
    is_live = sys.stdin.isatty() and is_terminal()
    if is_live:
        _greet(told)
    failures = 0
    for line in _lines(is_live=is_live):
        if not _is_text(line):
            complain("that was not UTF-8 text, and was not sent")
            failures += 1
            continue
        try:
            failures += not _act(told, line, triggers, is_live=is_live)
        except (Refused, Unreachable) as exc:
            complain(exc.message)
            failures += 1
    if failures and not is_live:
        raise typer.Exit(1)


def _greet(conversation: Conversation) -> None:
    session = conversation.session()
    if session is None:
        state = "a new conversation"
    else:
        state = f"generation {session['generation']}, {session['item_count']} items"
    say(f"{printable(conversation.key)} with {printable(conversation.model)}: {state}")
    say("/help for help, Ctrl-D to leave\n")


def _lines(*, is_live: bool) -> Iterator[str]:
    """Return what is typed, line by line, until the end."""
    if is_live:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - it gives the prompt a history and arrow keys
    while True:
        try:
            line = input(PROMPT if is_live else "")
        except EOFError:
            if is_live:
                say()
            return
        except KeyboardInterrupt:
            say()
            return
        if line.strip() == "/quit":
            return
        if line.strip():
            yield line


def _is_text(line: str) -> bool:
    """Whether a line was text: bytes that are not come in as halves of characters."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _act(
    conversation: Conversation, line: str, triggers: tuple[str, ...], *, is_live: bool
) -> bool:
    """Do what a line asks for; answer whether it could be done."""
    word, _, rest = line.strip().partition(" ")
    if word in triggers:
        fresh = conversation.reset(word)
        if fresh is not None:
            say(f"generation {fresh['generation']} begins; the old one stays")
        return _say_answer(conversation, rest, is_live=is_live) if rest.strip() else True
    match line.strip():
        case "/history":
            say_items(conversation.items(), is_log=False)
        case "/status":
            session = conversation.session()
            if session is None:
                say("nothing was said yet")
            else:
                say_session(session)
        case "/help":
            say(HELP)
        case _:
            return _say_answer(conversation, line, is_live=is_live)
    return True


def _say_answer(conversation: Conversation, text: str, *, is_live: bool) -> bool:
    """Print an answer as it comes."""
    column = 0
    told: Told | None = None
    try:
        for piece in conversation.ask(text):
            if isinstance(piece, Told):
                told = piece
            elif isinstance(piece, Broken):
                print("\n[broken off; once more from the start]" if column else "", flush=True)
            else:
                print(printable(piece, keep="\n\t"), end="", flush=True)
                column += len(piece)
    except KeyboardInterrupt:
        say("\n[cancelled]")
        conversation.cancel()
        return True
    say()
    if told is None:
        return False
    if told.error is not None:
        complain(told.error)
    if is_live:
        used = tokens(told.usage)
        parts = [told.session_id, f"generation {told.generation}", told.turn_id, used]
        line = " · ".join(printable(part) for part in parts if part)
        console().print(f"[{line}]\n", style="dim")
    return told.error is None


def _say_waiting(why: str) -> None:
    complain(f"{why} - waiting for it to come back")
