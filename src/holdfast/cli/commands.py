"""The tree of commands. Each command's body lives in a module of its own, loaded when called."""

from typing import Annotated

import typer

from holdfast._version import __version__
from holdfast.cli.sim import sim

app = typer.Typer(name="holdfast", no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """A durable session layer and gateway for LLM agents."""


app.command()(sim)


def run() -> None:
    """Run the command tree on the process's arguments."""
    app()
