"""`holdfast schedules`: turns that start at configured times."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from holdfast.cli.client.gateway_client import api_path
from holdfast.cli.options import ConfigFlag, JsonFlag, UrlFlag, connect
from holdfast.cli.output.terminal import print_json, print_line, print_table

app = typer.Typer(help="Schedules: add, list, run, pause.", no_args_is_help=True)
ScheduleName = Annotated[str, typer.Argument(help="Name of the schedule.")]


@app.command()
def add(
    name: ScheduleName,
    when: Annotated[
        str, typer.Argument(help="Cron ('0 9 * * 1-5'), a period (15m), or a time (ISO 8601).")
    ],
    prompt: Annotated[str, typer.Argument(help="Message that each run begins with.")],
    timezone: Annotated[str, typer.Option(help="IANA time zone.")] = "UTC",
    model: Annotated[str, typer.Option(help="Model that answers.")] = "",
    session: Annotated[str, typer.Option(help="isolated, or a session key.")] = "isolated",
    deliver: Annotated[
        str | None, typer.Option(help="CHANNEL:CHAT that the answer goes to.")
    ] = None,
    config: ConfigFlag = None,
    url: UrlFlag = None,
) -> None:
    """Create or change a schedule."""
    body: dict[str, Any] = {
        "name": name, "prompt": prompt, "timezone": timezone, "model": model, "session": session,
        _kind(when): when,
    }  # fmt: skip
    if deliver is not None:
        channel, _, chat = deliver.partition(":")
        if not chat:
            raise typer.BadParameter(f"--deliver must be CHANNEL:CHAT, not {deliver!r}")
        body["deliver"] = {"channel": channel, "to": chat}
    _print_next(connect(url, config).post("/v1/schedules", body))


@app.command("list")
def list_schedules(
    config: ConfigFlag = None, url: UrlFlag = None, as_json: JsonFlag = False
) -> None:
    """List the schedules."""
    listed = list(connect(url, config).list_all("/v1/schedules"))
    if as_json:
        print_json(listed)
        return
    rows = [
        (schedule["name"], _when(schedule), _state(schedule), schedule["reason"])
        for schedule in listed
    ]
    print_table(("name", "when", "next", "reason"), rows, empty="no schedules")


@app.command()
def show(name: ScheduleName, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Show a schedule with its last runs, as JSON."""
    print_json(connect(url, config).get(api_path("schedules", name)))


@app.command()
def run(name: ScheduleName, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Run a schedule now."""
    connect(url, config).post(api_path("schedules", name, "run"))
    print_line(f"{name} is due now")


@app.command()
def pause(name: ScheduleName, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Pause a schedule."""
    _print_next(connect(url, config).post(api_path("schedules", name, "pause")))


@app.command()
def resume(name: ScheduleName, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Resume a schedule."""
    _print_next(connect(url, config).post(api_path("schedules", name, "resume")))


@app.command()
def delete(name: ScheduleName, config: ConfigFlag = None, url: UrlFlag = None) -> None:
    """Forget a schedule and end its run; its sessions stay."""
    connect(url, config).delete(api_path("schedules", name))
    print_line(f"deleted {name}")


def _kind(when: str) -> str:
    """Return the field for a time: a date starts with its year, a period is one word."""
    if re.match(r"\d{4}-|\d{8}T", when):
        return "at"
    return "every" if when[:1].isdigit() and len(when.split()) == 1 else "cron"


def _when(schedule: dict[str, Any]) -> str:
    return str(schedule.get("cron") or schedule.get("every") or schedule.get("at") or "")


def _state(schedule: dict[str, Any]) -> str:
    if schedule["is_paused"]:
        return "paused"
    at = schedule["next_run_at"]
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at else "never"


def _print_next(schedule: dict[str, Any]) -> None:
    state = _state(schedule)
    print_line(f"{schedule['name']}: {state if schedule['is_paused'] else f'next run {state}'}")
