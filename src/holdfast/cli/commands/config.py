"""`holdfast config`: show and check the effective configuration."""

import asyncio
import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import typer

from holdfast.cli.options import ConfigFlag, JsonFlag, load_settings
from holdfast.cli.output.masking import SECRET, mask_url
from holdfast.cli.output.terminal import print_json, print_line, print_table, printable

if TYPE_CHECKING:
    from holdfast.doctor.configuration import CheckResult

app = typer.Typer(help="Show and check the configuration.", no_args_is_help=True)


@app.command()
def show(config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Print the effective configuration, with secrets masked."""
    value = masked(load_settings(config))
    if as_json:
        print_json(value)
        return
    for line in as_toml(value):
        print_line(line)


@app.command()
def check(config: ConfigFlag = None, as_json: JsonFlag = False) -> None:
    """Check what a configuration names: store, address, upstreams, channels, MCP servers, ...

    Nothing is changed or sent.
    """
    from holdfast.cli.config_checks import check_configuration
    from holdfast.settings import config_path, load

    # Load without required secrets: missing ones are results of the check too.
    results = asyncio.run(check_configuration(load(config, with_secrets=False)))
    path = config_path(config)
    source = os.path.abspath(path) if path is not None else "defaults and environment"
    if as_json:
        print_json({"config": source, "checks": [dataclasses.asdict(one) for one in results]})
    else:
        _print_checks(source, results)
    if not all(result.is_ok for result in results):
        raise typer.Exit(1)


def _print_checks(source: str, results: "list[CheckResult]") -> None:
    print_line(f"configuration: {printable(source)}")
    rows = [(_result_name(result), result.subject, result.detail) for result in results]
    print_table(("result", "check", "detail"), rows, empty="nothing to check")


def _result_name(result: "CheckResult") -> str:
    if not result.is_ok:
        return "failed"
    return "warning" if result.is_warning else "ok"


def masked(settings: Any) -> dict[str, Any]:
    """Return settings as plain values, with secrets masked."""
    renamed = {
        "upstreams": "upstream",
        "keys": "key",
        "channels": "channel",
        "schedules": "schedule",
    }
    value = {renamed.get(name, name): inner for name, inner in dataclasses.asdict(settings).items()}
    value["sessions"]["reset"] = value.pop("reset")
    value["store"]["url"] = mask_url(value["store"]["url"])
    for table in value["upstream"]:
        del table["runtime"]  # derived, not configured
        table["url"] = mask_url(table["url"])
    for table in (*value["upstream"], *value["key"]):
        if table.get("key"):
            table["key"] = SECRET
    for table in value["mcp"]:
        del table["secrets"]
        table["url"] = mask_url(table["url"])
    for channel, table in zip(settings.channels, value["channel"], strict=True):
        secrets = [field.name for field in dataclasses.fields(channel) if not field.repr]
        table.update((name, SECRET) for name in secrets if table[name])
    return value


def as_toml(value: dict[str, Any], prefix: str = "") -> list[str]:
    """Return values as the lines of a configuration file."""
    lines: list[str] = []
    for name, inner in value.items():
        if isinstance(inner, dict):
            plain = {k: v for k, v in inner.items() if not isinstance(v, dict)}
            lines.append(f"[{prefix}{name}]")
            lines += [f"{k} = {_literal(v)}" for k, v in plain.items() if v is not None]
            nested = {k: v for k, v in inner.items() if isinstance(v, dict)}
            lines += as_toml(nested, f"{prefix}{name}.")
        else:
            lines += _array_of_tables(name, inner)
    return lines


def _array_of_tables(name: str, tables: Any) -> list[str]:
    lines: list[str] = []
    for table in tables:
        lines.append(f"[[{name}]]")
        lines += [f"{k} = {_literal(v)}" for k, v in table.items() if v is not None]
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{k} = {_literal(v)}" for k, v in value.items())
        return "{ " + inner + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return json.dumps(value)
