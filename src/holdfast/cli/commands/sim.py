"""`holdfast sim`: run the provider simulator."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.simulator.state.scenario import Scenario


def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8400,
    scenario: Annotated[
        Path | None, typer.Option(help="TOML file: answers, faults, barriers, settings.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the ids.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="openai, azure-like, chat-only, ignores-previous-id, strict-alternation, anthropic"
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="Fault, such as 'R02' or 'cut event=3 times=1'. Repeatable."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="JSONL file to append every request to.")
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(help="Simulate a chat platform: telegram, slack, signal or webhooks."),
    ] = None,
) -> None:
    """Run a simulated model provider, or chat platform, that can misbehave."""
    if platform is not None:
        _run_platform(platform, host, port)
        return
    from holdfast.simulator.server.running import run
    from holdfast.simulator.state.scenario import InvalidScenario

    try:
        loaded = _load_scenario(scenario, seed, profile, fault or [])
    except InvalidScenario as exc:
        typer.echo(f"holdfast sim: {exc}", err=True)
        raise typer.Exit(2) from exc
    try:
        run(loaded, host=host, port=port, record=record, announce=_print_url)
    except OSError as exc:
        typer.echo(
            f"holdfast sim: {exc.strerror or exc}: {exc.filename or f'{host}:{port}'}", err=True
        )
        raise typer.Exit(1) from exc


def _load_scenario(
    path: Path | None, seed: int | None, profile: str | None, faults: list[str]
) -> "Scenario":
    """Return the scenario of the file, overridden by the flags."""
    import msgspec

    from holdfast.simulator.server.flags import read_flag
    from holdfast.simulator.state.profiles import PROFILES
    from holdfast.simulator.state.scenario import InvalidScenario, Scenario, load_scenario

    scenario = load_scenario(path) if path is not None else Scenario()
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    if profile is not None:
        if profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise InvalidScenario(f"--profile: no profile {profile!r}; there are {known}")
        scenario = msgspec.structs.replace(scenario, profile=PROFILES[profile].name)
    added = [read_flag(text) for text in faults]
    return msgspec.structs.replace(scenario, faults=[*scenario.faults, *added])


def _print_url(url: str) -> None:
    typer.echo(f"holdfast sim listening on {url}")


def _run_platform(platform: str, host: str, port: int) -> None:
    """Simulate a chat platform; lines of standard input are messages, answers are printed."""
    from holdfast.simulator.platforms.console import PLATFORMS, PlatformConsole

    if platform not in PLATFORMS:
        known = ", ".join(PLATFORMS)
        typer.echo(f"holdfast sim: --platform is one of {known}, not {platform!r}", err=True)
        raise typer.Exit(2)
    if host != "127.0.0.1":
        typer.echo("holdfast sim: a platform listens on 127.0.0.1 alone", err=True)
        raise typer.Exit(2)
    console = PlatformConsole(platform, port)

    def announce() -> None:
        _print_url(console.url)
        for line in console.table():
            typer.echo(line)

    try:
        console.run(sys.stdin, typer.echo, announce)
    except OSError as exc:
        typer.echo(f"holdfast sim: {exc.strerror or exc}: {host}:{port}", err=True)
        raise typer.Exit(1) from exc
    except KeyboardInterrupt:
        return
