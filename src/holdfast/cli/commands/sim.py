"""`holdfast sim`: the provider simulator as a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.simulator.state.scenario import Scenario


def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8400,
    scenario: Annotated[
        Path | None, typer.Option(help="A TOML file: answers, faults, barriers, settings.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same ids.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="openai, azure-like, chat-only, ignores-previous-id, strict-alternation, anthropic"
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="A fault, such as 'R02' or 'cut event=3 times=1'. Repeatable."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Append every request to this JSONL file.")
    ] = None,
) -> None:
    """Run a model provider that misbehaves on command."""
    from holdfast.simulator.server.running import run
    from holdfast.simulator.state.scenario import InvalidInput

    try:
        told = _told(scenario, seed, profile, fault or [])
    except InvalidInput as exc:
        typer.echo(f"holdfast sim: {exc}", err=True)
        raise typer.Exit(2) from exc
    try:
        run(told, host=host, port=port, record=record, announce=_announce)
    except OSError as exc:
        typer.echo(
            f"holdfast sim: {exc.strerror or exc}: {exc.filename or f'{host}:{port}'}", err=True
        )
        raise typer.Exit(1) from exc


def _told(
    path: Path | None, seed: int | None, profile: str | None, faults: list[str]
) -> "Scenario":
    """Return the scenario of the file, with what the flags say on top."""
    import msgspec

    from holdfast.simulator.server.flags import read_flag
    from holdfast.simulator.state.profiles import PROFILES
    from holdfast.simulator.state.scenario import InvalidInput, Scenario, load_scenario

    told = load_scenario(path) if path is not None else Scenario()
    if seed is not None:
        told = msgspec.structs.replace(told, seed=seed)
    if profile is not None:
        if profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise InvalidInput(f"--profile: no profile {profile!r}; there are {known}")
        told = msgspec.structs.replace(told, profile=PROFILES[profile].name)
    added = [read_flag(written) for written in faults]
    return msgspec.structs.replace(told, faults=[*told.faults, *added])


def _announce(url: str) -> None:
    typer.echo(f"holdfast sim listening on {url}")
