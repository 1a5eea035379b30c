"""`holdfast config`: what is in force, and where it would come from."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="The configuration.", no_args_is_help=True)

SECRET = "********"
SECRET_WORDS = ("password", "key", "token", "secret", "sig")
"""What the name of a secret in a URL's query has in it."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option(help="A configuration file (TOML).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
) -> None:
    """Show the effective configuration, secrets masked."""
    from holdfast.settings import load

    value = masked(load(config))
    if as_json:
        typer.echo(json.dumps(value))
        return
    for line in as_toml(value):
        typer.echo(line)


def masked(settings: Any) -> dict[str, Any]:
    """Return settings as plain values, with nothing in them that must not be seen."""
    value = {
        ("upstream" if name == "upstreams" else "key" if name == "keys" else name): inner
        for name, inner in dataclasses.asdict(settings).items()
    }
    value["sessions"]["reset"] = value.pop("reset")
    value["store"]["url"] = _without_password(value["store"]["url"])
    for table in value["upstream"]:
        table["url"] = _without_password(table["url"])
    for table in (*value["upstream"], *value["key"]):
        if table.get("key"):
            table["key"] = SECRET
    return value


def _without_password(url: str) -> str:
    """Return a URL with whatever in it could be a secret put out of sight."""
    address, mark, query = url.partition("?")
    scheme, found, rest = address.partition("://")
    login, at, where = rest.rpartition("@")
    if found and at and ":" in login:
        address = f"{scheme}://{login.partition(':')[0]}:{SECRET}@{where}"
    return address + mark + "&".join(_without_secret(part) for part in query.split("&"))


def _without_secret(part: str) -> str:
    name, mark, _ = part.partition("=")
    is_secret = mark and any(word in name.lower() for word in SECRET_WORDS)
    return f"{name}={SECRET}" if is_secret else part


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
            lines += _tables(name, inner)
    return lines


def _tables(name: str, tables: Any) -> list[str]:
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
        return "[" + ", ".join(_literal(one) for one in value) + "]"
    return json.dumps(value)
