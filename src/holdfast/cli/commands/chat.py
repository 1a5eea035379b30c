"""`holdfast chat`: talk to a session in a terminal, through restarts of its gateway."""

import contextlib
import difflib
import re
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.cli.client.conversation import AnswerEnd, AnswerRestarted, ChatConversation
from holdfast.cli.client.gateway_client import GatewayUnreachable, RequestRejected
from holdfast.cli.options import ConfigFlag, UrlFlag, connect, load_settings
from holdfast.cli.output.formatting import format_tokens, print_items, print_session
from holdfast.cli.output.terminal import (
    CommandFailed,
    console,
    is_terminal,
    print_error,
    print_line,
    printable,
)
from holdfast.cli.output.wrapping import WordWrapper, terminal_width

PROMPT = "you: "
COMMANDS = ("/history", "/status", "/help", "/quit")
TRIGGER_HELP = """{triggers} [message]
    start the next generation of this key; the old one stays
"""
HELP = """/history
    print the conversation
/status
    print the session
/quit
    leave; the session stays

Start a line with a space to send a message that looks like a command.
"""
_COMMAND = re.compile(r"/[A-Za-z][\w-]*(?=\s|$)")
"""A line that starts with this is a command; `/etc/hosts` is not."""


def chat(
    key: Annotated[str, typer.Argument(help="Key of the conversation.")] = "me",
    model: Annotated[str | None, typer.Option(help="Model; default: the first one.")] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a gateway that went away.")
    ] = 120.0,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Chat with a session, which keeps its history across restarts of the gateway."""
    client = connect(url, config)
    if model is None:
        models = client.get("/v1/models")["data"]
        if not models:
            raise CommandFailed("the gateway lists no model; give one with --model")
        model = str(models[0]["id"])
    conversation = ChatConversation(
        client, key, model, retry_seconds=patience, on_wait=_print_waiting
    )
    triggers = load_settings(config).reset.triggers
    is_interactive = sys.stdin.isatty() and is_terminal()
    if is_interactive:
        _print_greeting(conversation, client.url)
    failures = 0
    for line in _read_lines(is_interactive=is_interactive):
        try:
            failures += not _handle(conversation, line, triggers, is_interactive=is_interactive)
        except (RequestRejected, GatewayUnreachable) as exc:
            print_error(exc.message)
            failures += 1
    if failures and not is_interactive:
        raise typer.Exit(1)


def _print_greeting(conversation: ChatConversation, url: str) -> None:
    session = conversation.session()
    if session is None:
        state = "a new conversation"
    else:
        state = f"generation {session['generation']}, {session['item_count']} items"
    name, model = printable(conversation.key), printable(conversation.model)
    print_line(f"{name} with {model} at {url}: {state}")
    print_line("/help for help, Ctrl-D to leave\n")


def _read_lines(*, is_interactive: bool) -> Iterator[str]:
    """Yield the lines of standard input until its end or `/quit`."""
    if is_interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives the prompt a history and arrow keys
    while True:
        try:
            line = input(PROMPT if is_interactive else "")
        except EOFError:
            if is_interactive:
                print_line()
            return
        except KeyboardInterrupt:
            print_line()
            return
        if line.rstrip() == "/quit":
            return
        if line.strip():
            yield line


def _is_text(line: str) -> bool:
    """Return whether a line was UTF-8: other bytes arrive as lone surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _handle(
    conversation: ChatConversation, line: str, triggers: tuple[str, ...], *, is_interactive: bool
) -> bool:
    """Execute a command or send a message; return whether it succeeded."""
    if not _is_text(line):
        print_error("the line is not UTF-8 text and was not sent")
        return False
    # A line that starts with a space is always sent.
    word, _, rest = line.rstrip().partition(" ")
    if word in triggers:
        new_session = conversation.reset(word)
        if new_session is not None:
            print_line(f"generation {new_session['generation']} starts; the old one stays")
        return not rest.strip() or _print_answer(conversation, rest, is_interactive=is_interactive)
    match line.rstrip():
        case "/history":
            print_items(conversation.items(), is_log=False)
        case "/status":
            session = conversation.session()
            if session is None:
                print_line("this key has no session yet")
            else:
                print_session(session)
        case "/help":
            first = TRIGGER_HELP.format(triggers=", ".join(triggers)) if triggers else ""
            print_line(first + HELP)
        case _ if _COMMAND.match(line) is not None:
            reject_command(line, triggers)
            return False
        case _:
            return _print_answer(conversation, line, is_interactive=is_interactive)
    return True


def reject_command(line: str, triggers: tuple[str, ...]) -> None:
    """Print that a command was not sent, and which one may be meant."""
    command = line.split(maxsplit=1)[0]
    near = difflib.get_close_matches(command.lower(), [*COMMANDS, *triggers], 1)
    if command in COMMANDS:
        problem, hint = f"{command} was not executed,", f"{command} takes no text."
    else:
        problem = f"unknown command {command},"
        hint = f"did you mean {near[0]}?" if near else "see /help."
    print_error(f"{problem} not sent; {hint} Start the line with a space to send it")


def _print_answer(conversation: ChatConversation, text: str, *, is_interactive: bool) -> bool:
    """Print an answer as it arrives, wrapped at words on a terminal."""
    has_output = False
    end: AnswerEnd | None = None
    wrapper = WordWrapper(terminal_width()) if is_interactive else None
    try:
        for piece in conversation.send(text):
            if isinstance(piece, AnswerEnd):
                end = piece
            elif isinstance(piece, AnswerRestarted):
                wrapper = WordWrapper(terminal_width()) if is_interactive else None
                print("\n[interrupted; the answer starts again]" if has_output else "", flush=True)
            else:
                visible = printable(piece, keep="\n\t")
                print(wrapper.feed(visible) if wrapper else visible, end="", flush=True)
                has_output = True
    except KeyboardInterrupt:
        print_line(f"{wrapper.flush() if wrapper else ''}\n[cancelled]")
        conversation.cancel()
        return True
    print_line(wrapper.flush() if wrapper else "")
    if end is None:
        return False
    if end.error is not None:
        print_error(end.error)
    if is_interactive:
        usage = format_tokens(end.usage)
        parts = [end.session_id, f"generation {end.generation}", end.turn_id, usage]
        line = " · ".join(printable(part) for part in parts if part)
        console().print(f"[{line}]\n", style="dim")
    return end.error is None


def _print_waiting(reason: str) -> None:
    print_error(f"{reason} - waiting for it to return")
