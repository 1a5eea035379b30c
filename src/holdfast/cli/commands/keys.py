"""`holdfast keys`: make, list and revoke API keys, directly in the store."""

import asyncio
import json
import secrets
from typing import Annotated, Any

import typer

from holdfast.cli.options import JsonFlag, StoreFlag
from holdfast.cli.output.terminal import CommandFailed, say_table

app = typer.Typer(help="API keys: made here, kept as hashes, shown once.", no_args_is_help=True)


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose sessions the key opens.")] = "default",
    name: Annotated[str, typer.Option(help="A note to know it by.")] = "",
    admin: Annotated[bool, typer.Option(help="May see metrics and every tenant.")] = False,
    store: StoreFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key and show it, this once."""
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
    row = asyncio.run(_submit(store, command))
    if as_json:
        typer.echo(json.dumps({"id": row.id, "tenant": row.tenant, "key": key}))
        return
    typer.echo(f"{row.id} for tenant {row.tenant}; keep the key, it is not shown again:")
    typer.echo(key)


@app.command("list")
def list_keys(store: StoreFlag = None, as_json: JsonFlag = False) -> None:
    """List the keys, without what they are."""
    found = asyncio.run(_list(store))
    values = [
        {
            "id": row.id,
            "tenant": row.tenant,
            "name": row.name,
            "admin": bool(row.is_admin),
            "created_at": int(row.created_at),
            "revoked_at": int(row.revoked_at) if row.revoked_at is not None else None,
        }
        for row in found
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
    say_table(columns, rows, empty="no keys: the gateway answers its own machine only")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id that `list` shows.")],
    store: StoreFlag = None,
) -> None:
    """Close a key for good."""
    from holdfast.core.transaction.commands import RevokeApiKey

    row = asyncio.run(_submit(store, RevokeApiKey(id=key_id), must_exist=True))
    typer.echo(f"{row.id} is revoked")


async def _submit(url: str | None, command: Any, *, must_exist: bool = False) -> Any:
    opened = await _open(url, must_exist=must_exist)
    try:
        return await opened.submit(command)
    finally:
        await opened.close()


async def _list(url: str | None) -> Any:
    opened = await _open(url, must_exist=True)
    try:
        return await opened.read.api_keys()
    finally:
        await opened.close()


async def _open(url: str | None, *, must_exist: bool) -> Any:
    """Open the store; the first key may make one, but none is looked for where there is none."""
    from holdfast.app import open_configured_store
    from holdfast.settings import load
    from holdfast.stores.open import sqlite_path

    settings = load(flags={"store": {"url": url}})
    if must_exist and settings.store.url.startswith("sqlite:"):
        path = sqlite_path(settings.store.url)
        if not path.exists():
            raise CommandFailed(f"there is no store at {path}")
    return await open_configured_store(settings)
