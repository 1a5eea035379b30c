"""`holdfast keys`: create, list and revoke API keys, directly in the store."""

import asyncio
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import (
    ConfigFlag,
    JsonFlag,
    StoreFlag,
    store_settings,
)
from holdfast.cli.output.masking import mask_url
from holdfast.cli.output.terminal import CommandFailed, print_error, print_table

if TYPE_CHECKING:
    from holdfast.settings import Settings

app = typer.Typer(help="API keys: stored as hashes, shown once.", no_args_is_help=True)


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Tenant of the key.")] = "default",
    name: Annotated[str, typer.Option(help="Note that `list` shows.")] = "",
    admin: Annotated[bool, typer.Option(help="Allow the admin endpoints.")] = False,
    config: ConfigFlag = None,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key and print it, once."""
    from holdfast.core.decisions.api_keys import hash_key
    from holdfast.core.ids import read_tenant
    from holdfast.core.transaction.commands import AddApiKey

    key = "hf_" + secrets.token_urlsafe(32)
    command = AddApiKey(
        id="key_" + secrets.token_hex(8),
        tenant=read_tenant(tenant),
        name=name,
        hash=hash_key(key),
        is_admin=admin,
    )
    settings = store_settings(config, store)
    asyncio.run(_may_create_store(settings, config, store))
    row = asyncio.run(_submit(settings, command))
    if as_json:
        typer.echo(json.dumps({"id": row.id, "tenant": row.tenant, "key": key}))
        return
    typer.echo(f"{row.id} for tenant {row.tenant}; save the key, it is not shown again:")
    typer.echo(key)


@app.command("list")
def list_keys(
    config: ConfigFlag = None, store: StoreFlag = None, as_json: JsonFlag = False
) -> None:
    """List the keys of the store, without their secrets."""
    settings = store_settings(config, store)
    values = [
        {
            "id": row.id,
            "tenant": row.tenant,
            "name": row.name,
            "admin": bool(row.is_admin),
            "created_at": int(row.created_at),
            "revoked_at": int(row.revoked_at) if row.revoked_at is not None else None,
        }
        for row in asyncio.run(_list(settings))
    ]
    if as_json:
        typer.echo(json.dumps(values))
        return
    rows = [
        (
            value["id"],
            value["tenant"],
            value["name"],
            "yes" if value["admin"] else None,
            "revoked" if value["revoked_at"] is not None else "live",
        )
        for value in values
    ]
    columns = ("id", "tenant", "name", "admin", "state")
    empty = "no keys: the gateway only serves this machine"
    if settings.keys:
        empty = f"no keys in the store; the configuration has {len(settings.keys)}"
    print_table(columns, rows, empty=empty)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, from `list`.")],
    config: ConfigFlag = None,
    store: StoreFlag = None,
) -> None:
    """Revoke a key for good."""
    from holdfast.core.transaction.commands import RevokeApiKey

    settings = store_settings(config, store)
    row = asyncio.run(_submit(settings, RevokeApiKey(id=key_id), must_exist=True))
    typer.echo(f"{row.id} is revoked")


async def _submit(settings: "Settings", command: Any, *, must_exist: bool = False) -> Any:
    store = await _open(settings, must_exist=must_exist)
    try:
        return await store.submit(command)
    finally:
        await store.close()


async def _list(settings: "Settings") -> Any:
    """Read the keys; a store of an earlier version is not migrated by looking at it."""
    from holdfast.app import read_configured_store

    await _require_store(settings)
    store = await read_configured_store(settings)
    try:
        return await store.read.api_keys()
    finally:
        await store.close()


async def _open(settings: "Settings", *, must_exist: bool) -> Any:
    """Open the store; only `create` may create it."""
    from holdfast.app import open_configured_store

    if must_exist:
        await _require_store(settings)
    return await open_configured_store(settings)


async def _may_create_store(settings: "Settings", config: Path | None, store: str | None) -> None:
    """Reject a store that does not exist, unless it was named: then say that it is new."""
    from holdfast.settings import names_store
    from holdfast.stores.inspect import inspect_store

    inspection = await inspect_store(settings.store.url)
    if inspection.exists:
        return
    if store is None and not names_store(config):
        raise CommandFailed(
            f"there is no store at {inspection.path} yet: start `holdfast serve`, or name one "
            "with --store"
        )
    print_error(f"{inspection.path} is a new store")


async def _require_store(settings: "Settings") -> None:
    from holdfast.stores.inspect import inspect_store

    inspection = await inspect_store(settings.store.url)
    if not inspection.exists:
        raise CommandFailed(f"there is no store at {inspection.path}")
    if inspection.is_bare:
        name = mask_url(settings.store.url)
        raise CommandFailed(f"{name} has no tables yet; start `holdfast serve` once")
    where = f"{inspection.path}: " if inspection.path else ""
    if inspection.damage:
        raise CommandFailed(f"{where}{inspection.damage[0]}")
    if inspection.refusal is not None:
        raise CommandFailed(f"{where}{inspection.refusal}")
