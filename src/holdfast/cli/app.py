"""The command tree; each command has its own module."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast._version import __version__
from holdfast.cli.commands import config as config_command
from holdfast.cli.commands import keys, sessions
from holdfast.cli.commands.automation import channels, schedules
from holdfast.cli.commands.backup import backup
from holdfast.cli.commands.chat import chat
from holdfast.cli.commands.doctor import doctor
from holdfast.cli.commands.init import init
from holdfast.cli.commands.sim import sim
from holdfast.cli.commands.status import status
from holdfast.cli.commands.tools.mcp import mcp
from holdfast.cli.commands.tools.search import search
from holdfast.cli.options import ConfigFlag
from holdfast.cli.output.terminal import (
    CommandFailed,
    clear_targets,
    colors_disabled,
    print_error,
    print_failure,
    print_targets,
    report_failure,
)
from holdfast.cli.remote import approvals

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if colors_disabled() else "rich",
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Plain text without colours, like NO_COLOR=1.")
    ] = False,
) -> None:
    """A durable session layer and gateway for LLM agents."""
    del version
    if no_color:
        os.environ["NO_COLOR"] = "1"


@app.command()
def serve(
    config: ConfigFlag = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Port to listen on; 0: a free one.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="sqlite:///file.db, postgresql://… or memory:")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server, with /v1.")
    ] = None,
    upstream_api: Annotated[
        str | None, typer.Option(help="API of the upstream: auto, responses, chat or both.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Lowest level logged: debug, info, warning, error.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="Format of the log: text or json.")] = None,
) -> None:
    """Run the gateway until it is stopped."""
    from holdfast.cli.commands.serve import run
    from holdfast.settings import load

    flags: dict[str, dict[str, object]] = {
        "server": {"host": host, "port": port},
        "store": {"url": store},
        "upstream": {"url": upstream, "api": upstream_api},
        "log": {"level": log_level, "format": log_format},
    }
    run(load(config, flags=flags))


app.command()(init)
app.command()(chat)
app.command()(status)
app.command()(doctor)
app.command()(search)
app.command()(mcp)
app.command()(backup)
app.add_typer(sessions.app, name="sessions")
app.add_typer(keys.app, name="keys")
app.add_typer(approvals.app, name="approvals")
app.add_typer(config_command.app, name="config")
app.add_typer(channels.app, name="channels")
app.add_typer(channels.outbox, name="outbox")
app.add_typer(schedules.app, name="schedules")
app.command()(channels.send)
app.command()(sim)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

# Typer vendors click's exceptions; its public errors derive from this one in every version.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)


def run() -> None:
    """Run the command of this process."""
    raise SystemExit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run a command; an error is printed and returns 1, or 2 for wrong usage."""
    from holdfast.core.errors import HoldfastError

    clear_targets()
    try:
        code = app(list(arguments), prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
        print_targets()
    except CommandFailed as exc:
        print_failure(exc.message)
        return exc.exit_code
    except HoldfastError as exc:
        return report_failure(exc)
    except _UsageError as exc:
        return _report_usage_error(exc)
    except (typer.Abort, KeyboardInterrupt):
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has left (`| head`): not worth a message.
        _discard_output()
        return 1
    except OSError as exc:
        _discard_output()
        return report_failure(exc)
    return code if isinstance(code, int) else 0


def _discard_output() -> None:
    """Flush standard output, or discard it: the flush at exit would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_usage_error(exc: Any) -> int:
    """Print what is wrong with the options, and where to find help."""
    if type(exc).__name__ == "NoArgsIsHelpError":
        exc.show()
    else:
        path = exc.ctx.command_path if exc.ctx is not None else "holdfast"
        # Typer's types begin their reasons like this.
        message = exc.format_message().replace(": Value error, ", ": ")
        print_error(f"{message} (see `{path} --help`)")
    return 2
