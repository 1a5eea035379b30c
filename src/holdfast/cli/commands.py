"""The tree of commands. Each command's body lives in a module of its own, loaded when called."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast._version import __version__
from holdfast.cli import config as config_command
from holdfast.cli import keys
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


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes a free one.")] = None,
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
    import asyncio

    from holdfast.cli.serve import serve as serve_until_stopped
    from holdfast.settings import load

    flags: dict[str, dict[str, object]] = {
        "server": {"host": host, "port": port},
        "store": {"url": store},
        "upstream": {"url": upstream, "api": upstream_api},
    }
    asyncio.run(serve_until_stopped(load(config, flags=flags)))


app.command()(sim)
app.add_typer(keys.app, name="keys")
app.add_typer(config_command.app, name="config")


def run() -> None:
    """Run the command tree; an error of ours is one line, and exit code 1."""
    from holdfast.core.errors import HoldfastError, InvalidSetting

    try:
        app()
    except HoldfastError as exc:
        typer.echo(f"holdfast: {exc.message}", err=True)
        raise SystemExit(2 if isinstance(exc, InvalidSetting) else 1) from None
    except OSError as exc:
        typer.echo(f"holdfast: {exc.strerror or exc}", err=True)
        raise SystemExit(1) from None
