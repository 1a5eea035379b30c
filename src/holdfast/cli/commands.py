"""The tree of commands. Each command's body lives in a module of its own, loaded when called."""

from typing import Annotated, Literal

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


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8377,
    store: Annotated[
        str | None, typer.Option(help="sqlite:///file.db, postgresql://… or memory:")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server, with /v1.")
    ] = None,
    upstream_api: Annotated[
        str, typer.Option(help="Which API the upstream speaks: responses or chat.")
    ] = "responses",
) -> None:
    """Serve the gateway until told to stop."""
    import asyncio

    from holdfast.cli.serve import serve as serve_until_stopped
    from holdfast.core.errors import InvalidSetting
    from holdfast.settings import ServerSettings, Settings, default_store_url, only_upstream

    if upstream_api not in ("responses", "chat"):
        raise InvalidSetting(f"--upstream-api is responses or chat, not {upstream_api!r}")
    api: Literal["responses", "chat"] = "chat" if upstream_api == "chat" else "responses"
    settings = Settings(
        server=ServerSettings(host=host, port=port),
        store_url=store or default_store_url(),
        upstreams=(only_upstream(upstream, api),) if upstream else (),
    )
    asyncio.run(serve_until_stopped(settings))


app.command()(sim)


def run() -> None:
    """Run the command tree; an error of ours is one line, and exit code 1."""
    from holdfast.core.errors import HoldfastError

    try:
        app()
    except HoldfastError as exc:
        typer.echo(f"holdfast: {exc.message}", err=True)
        raise SystemExit(1) from None
    except OSError as exc:
        typer.echo(f"holdfast: {exc.strerror or exc}", err=True)
        raise SystemExit(1) from None
