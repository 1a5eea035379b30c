"""Options that several commands share, and the settings and sessions that they select."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.client.gateway_client import GatewayClient, RequestRejected, Value, api_path
from holdfast.cli.output.masking import mask_url
from holdfast.cli.output.terminal import CommandFailed, note_target, print_error

if TYPE_CHECKING:
    from holdfast.settings import Settings

ConfigFlag = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file (TOML); default: HOLDFAST_CONFIG."),
]
UrlFlag = Annotated[
    str | None,
    typer.Option("--url", help="URL of the gateway; default: HOLDFAST_URL, else as configured."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StoreFlag = Annotated[
    str | None, typer.Option("--store", help="URL of the store; default: as configured.")
]
SessionName = Annotated[str, typer.Argument(help="Session id or key.")]


def load_settings(config: Path | None, store: str | None = None) -> "Settings":
    """Return the settings that `serve` would use with the same file and environment."""
    from holdfast.settings import load

    return load(config, flags={"store": {"url": store}}, with_secrets=False)


def store_settings(config: Path | None, store: str | None) -> "Settings":
    """Return the settings of a command that opens the store."""
    from holdfast.settings import names_store

    settings = load_settings(config, store)
    if store is None and not names_store(config):
        settings = _with_running_store(settings)
    note_target(f"store {mask_url(settings.store.url)}")
    return settings


def _with_running_store(settings: "Settings") -> "Settings":
    """Select the store of the gateway that runs, where nobody has named another one."""
    from holdfast.settings.running import running_gateways
    from holdfast.stores.open import MEMORY

    found = {gateway.store: gateway for gateway in running_gateways()}
    if not found or settings.store.url in found:
        return settings
    said = "; ".join(f"the gateway at {one.url} uses {one.store}" for one in found.values())
    (gateway, *others) = found.values()
    if others or gateway.has_secret:
        raise CommandFailed(f"{said}; add --store")
    if gateway.store == MEMORY:
        raise CommandFailed(f"{said}, which no other process can open; add --store")
    print_error(said)
    return replace(settings, store=replace(settings.store, url=gateway.store))


def connect(url: str | None, config: Path | None) -> GatewayClient:
    """Return a client of the gateway that the options and the configuration select."""
    from holdfast.settings.target import find_target

    client = GatewayClient(find_target(url, load_settings(config)))
    note_target(f"gateway {client.url}")
    return client


def check_output_file(path: Path) -> None:
    """Reject a path that a new file must not replace: a folder, a link, a device, a pipe."""
    if path.is_dir():
        raise CommandFailed(f"{path} is a directory; name a file")
    if path.is_symlink():
        raise CommandFailed(f"{path} is a symbolic link and would be replaced; name a file")
    if path.exists() and not path.is_file():
        raise CommandFailed(f"{path} is not a regular file and would be replaced; name a file")


def find_session(client: GatewayClient, name: str) -> Value:
    """Return the session with this id or, if there is none, the live session of this key."""
    if name.startswith(("ses_", "conv_")):
        try:
            session: Value = client.get(api_path("sessions", "ses_" + name.partition("_")[2]))
        except RequestRejected as exc:
            if exc.status != 404:
                raise
        else:
            return session
    sessions: list[Value] = client.get("/v1/sessions", key=name)["data"]
    if not sessions:
        raise CommandFailed(f"no session has the id or key {name!r}")
    return sessions[0]
