"""The tree of commands. Each command's body lives in a module of its own, loaded when called."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast._version import __version__
from holdfast.cli.commands import config as config_command
from holdfast.cli.commands import keys, sessions
from holdfast.cli.commands.backup import backup
from holdfast.cli.commands.bench import bench
from holdfast.cli.commands.chat import chat
from holdfast.cli.commands.doctor import doctor
from holdfast.cli.commands.sim import sim
from holdfast.cli.commands.status import status
from holdfast.cli.commands.upgrade import upgrade
from holdfast.cli.output.terminal import CommandFailed, complain, failure_code, is_plain

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if is_plain() else "rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Plain text, as with NO_COLOR=1.")
    ] = False,
) -> None:
    """A durable session layer and gateway for LLM agents."""
    del version
    if no_color:
        os.environ["NO_COLOR"] = "1"


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The port; 0 takes a free one.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="sqlite:///file.db, postgresql://… or memory:")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server, with /v1.")
    ] = None,
    upstream_api: Annotated[
        str | None, typer.Option(help="Which API the upstream speaks: responses or chat.")
    ] = None,
) -> None:
    """Serve the gateway until told to stop."""
    from holdfast.cli.commands.serve import run
    from holdfast.settings import load

    flags: dict[str, dict[str, object]] = {
        "server": {"host": host, "port": port},
        "store": {"url": store},
        "upstream": {"url": upstream, "api": upstream_api},
    }
    run(load(config, flags=flags))


app.command()(chat)
app.command()(status)
app.command()(doctor)
app.command()(backup)
app.command()(upgrade)
app.add_typer(sessions.app, name="sessions")
app.add_typer(keys.app, name="keys")
app.add_typer(config_command.app, name="config")
app.command()(sim)
app.command()(bench)

INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl-C, as shells have it."""

# Typer brings its own copy of these; what its public errors derive from is the same everywhere.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)


def run() -> None:
    """Run the command that the process was started with."""
    raise SystemExit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Run a command; whatever goes wrong is one line, and exit code 1, or 2 for wrong usage."""
    from holdfast.core.errors import HoldfastError

    try:
        code = app(list(arguments), prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
    except CommandFailed as exc:
        complain(exc.message)
        return exc.exit_code
    except HoldfastError as exc:
        return failure_code(exc)
    except _UsageError as exc:
        return _misused(exc)
    except (typer.Abort, KeyboardInterrupt):
        complain("stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has left; that is no failure, and there is nobody to tell.
        _let_go_of_output()
        return 1
    except OSError as exc:
        _let_go_of_output()
        return failure_code(exc)
    return code if isinstance(code, int) else 0


def _let_go_of_output() -> None:
    """Write what is left, if it can be: else the interpreter would fail at it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _misused(exc: Any) -> int:
    """Say in one line what was wrong with the options, and where the right ones are listed."""
    if type(exc).__name__ == "NoArgsIsHelpError":
        exc.show()
    else:
        path = exc.ctx.command_path if exc.ctx is not None else "holdfast"
        complain(f"{exc.format_message()} (see `{path} --help`)")
    return 2
