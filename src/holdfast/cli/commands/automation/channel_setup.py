"""`holdfast channels add`: guide through the set-up of a channel."""

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output.terminal import CommandFailed, is_terminal, print_line
from holdfast.core.errors import InvalidSetting

STEPS: dict[str, tuple[str, ...]] = {
    "telegram": (
        "Write to @BotFather on Telegram, send /newbot, and copy the token.",
        "export TELEGRAM_BOT_TOKEN=…",
    ),
    "slack": (
        "pip install 'holdfast[slack]'",
        "Open https://api.slack.com/apps, Create New App, From a manifest, and paste the manifest.",
        "Install to Workspace, and copy the bot token: export SLACK_BOT_TOKEN=xoxb-…",
        "Create an app-level token with the scope connections:write: export SLACK_APP_TOKEN=xapp-…",
    ),
    "signal": (
        "pip install 'holdfast[signal]'",
        "Register or link an account: signal-cli link -n holdfast",
        "signal-cli daemon --http 127.0.0.1:8080 --receive-mode=manual",
    ),
}
FIELDS: dict[str, tuple[str, ...]] = {
    "telegram": ('token_env = "TELEGRAM_BOT_TOKEN"',),
    "slack": ('bot_token_env = "SLACK_BOT_TOKEN"', 'app_token_env = "SLACK_APP_TOKEN"'),
    "signal": ("account = {account}", 'url = "http://127.0.0.1:8080"'),
}


def add(
    name: Annotated[str, typer.Argument(help="Name of the channel.")],
    kind: Annotated[str | None, typer.Option(help="Platform: telegram, slack or signal.")] = None,
    model: Annotated[str | None, typer.Option(help="Model that answers.")] = None,
    account: Annotated[str | None, typer.Option(help="Signal: number of the account.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Configuration file to append the channel to.")
    ] = None,
) -> None:
    """Set up a channel: print the steps on the platform and the configuration, or append it."""
    kind = _ask("Platform (telegram, slack, signal)", kind, "telegram")
    if kind not in FIELDS:
        raise typer.BadParameter(f"--kind is one of {', '.join(FIELDS)}, not {kind!r}")
    model = _ask("Model that answers", model, "MODEL")
    account = _ask("Number of the account", account, "+4915112345678") if kind == "signal" else ""
    table = channel_table(name, kind, model, account)
    _check(table)
    print_line(f"# {kind}: what to do there")
    for number, step in enumerate(STEPS[kind], 1):
        print_line(f"#  {number}. {step}")
    if kind == "slack":
        _print_manifest(name)
    if write is None:
        print_line("# Add this to the configuration file and restart `holdfast serve`:")
        for line in table:
            print_line(line)
        return
    _append(write, table)
    print_line(f"# Appended to {write}; check it with `holdfast config check --config {write}`.")


def channel_table(name: str, kind: str, model: str, account: str = "") -> list[str]:
    """Return the lines of a `[[channel]]` table."""
    fields = [field.format(account=_quoted(account)) for field in FIELDS[kind]]
    return [
        "[[channel]]", f"name = {_quoted(name)}", f'kind = "{kind}"', *fields,
        f"model = {_quoted(model)}", 'direct = "pairing"    # strangers get a code to approve',
    ]  # fmt: skip


def _quoted(value: str) -> str:
    """Return a value in TOML notation, in which JSON's surrogate pairs are invalid."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _ask(question: str, given: str | None, default: str) -> str:
    """Return the given value, or ask for it on a terminal, or return the default."""
    if given is not None:
        return given
    return str(typer.prompt(question, default=default)) if is_terminal() else default


def _check(table: list[str]) -> None:
    """Reject a channel that the gateway would not accept."""
    import tomllib

    from holdfast.channels.settings import ChannelSettings

    try:
        (values,) = tomllib.loads("\n".join(table))["channel"]
        ChannelSettings(**values)
    except InvalidSetting as exc:
        raise CommandFailed(exc.message) from exc
    except (tomllib.TOMLDecodeError, UnicodeError) as exc:
        raise CommandFailed(f"the values cannot be written to a configuration: {exc}") from exc


def _print_manifest(name: str) -> None:
    from holdfast.channels.slack.manifest import app_manifest

    print_line("# The manifest of the app:")
    for line in json.dumps(app_manifest(name), indent=2).split("\n"):
        print_line(line)


def _append(path: Path, table: list[str]) -> None:
    """Append a table to a configuration file that has no channel of this name."""
    import tomllib

    try:
        before = path.read_text("utf-8")
        text = f"{before.rstrip()}\n\n" + "\n".join(table) + "\n"
        # Parse the result: the table must neither repeat a name nor make the file invalid.
        tomllib.loads(before)
        *existing, added = tomllib.loads(text.lstrip())["channel"]
        if any(channel.get("name") == added["name"] for channel in existing):
            raise CommandFailed(f"{path} has a channel of this name already")
        path.write_text(text.lstrip(), "utf-8")
    except FileNotFoundError as exc:
        raise CommandFailed(f"there is no file {path}; write one with `holdfast init`") from exc
    except OSError as exc:
        raise CommandFailed(f"{path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise CommandFailed(f"{path}: {exc}") from exc
