"""`holdfast init`: write a commented configuration file."""

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output.terminal import CommandFailed, print_line

TEMPLATE = """\
# Configuration of Holdfast. Lines that start with # show the defaults.
# Environment variables (HOLDFAST_<SECTION>_<FIELD>) beat this file, and flags beat both.
# Check it with `holdfast config check --config {path}`.

[server]
# host = "127.0.0.1"    # another address needs an API key: `holdfast keys create`
# port = 8377
# drain_seconds = 0     # after SIGTERM: keep accepting while /readyz answers 503 (PostgreSQL: 2)
# grace_seconds = 20    # then: time for running turns to finish

[store]
# url = "{store}"
# url = "postgresql://holdfast@localhost/holdfast"    # for several replicas

# Without an upstream the built-in demo model answers. The first upstream whose `models` match a
# request serves it. `key_env` names the environment variable with the key.
# [[upstream]]
# name = "openai"
# url = "https://api.openai.com/v1"
# api = "auto"          # asks the server what it speaks; or "responses", "chat", "both"
# key_env = "OPENAI_API_KEY"
# models = ["gpt-*", "o*"]

[lanes]
# on_busy = "enqueue"   # or "reject", "interrupt", "rollback", "steer"
# max_waiting = 64      # queued turns per session; the next one gets 429

[sessions.reset]
# mode = "none"         # or "idle", "daily"
# idle_minutes = 60
# at = "04:00"
# timezone = "UTC"

[limits]
# requests_per_minute = 0    # per tenant and process; 0 means no limit

[log]
# level = "warning"
# format = "text"       # or "json"
# areas = ["request=info"]    # one line per request

[otel]
# endpoint = ""         # OTLP/HTTP, such as "http://127.0.0.1:4318"; needs holdfast[otel]
# content = false       # whether traces carry the messages
"""


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("holdfast.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented configuration file."""
    from holdfast.settings import default_store_url

    text = TEMPLATE.format(path=path, store=default_store_url())
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise CommandFailed(f"{path} exists; add --force to replace it") from exc
    print_line(f"{path}: edit it, then `holdfast serve --config {path}`")
