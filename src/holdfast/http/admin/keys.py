"""The API keys of all tenants: list, create, revoke. A key is shown once, when it is created."""

import secrets
from typing import Any

from holdfast.core.decisions.api_keys import hash_key
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, read_tenant
from holdfast.core.transaction.changes import ApiKeyRow
from holdfast.core.transaction.commands import AddApiKey, RevokeApiKey
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.request.auth import Authenticator, require_admin
from holdfast.http.request.body import (
    pop_field,
    read_no_fields,
    read_optional_fields,
    reject_unknown,
)
from holdfast.http.server.types import AnyReply, Request, json_reply

MAX_NAME = 128


class KeysApi:
    """Everything under /v1/keys."""

    def __init__(self, gateway: Gateway, authenticator: Authenticator) -> None:
        self._gateway = gateway
        self._authenticator = authenticator

    async def list_all(self, request: Request) -> AnyReply:
        """Return every API key without its secret, revoked ones included."""
        require_admin(request)
        rows = await self._gateway.read.api_keys()
        values = [_key_value(row) for row in sorted(rows, key=lambda row: row.created_at)]
        return json_reply({"object": "list", "data": values})

    async def create(self, request: Request) -> AnyReply:
        """Create an API key; only this answer shows it."""
        require_admin(request)
        fields = await read_optional_fields(request)
        tenant = read_tenant(pop_field(fields, "tenant", str, DEFAULT_TENANT))
        name = pop_field(fields, "name", str) or ""
        is_admin = bool(pop_field(fields, "admin", bool))
        reject_unknown(fields)
        if len(name) > MAX_NAME or "\0" in name:
            raise InvalidInput(f"name: at most {MAX_NAME} characters, without NUL", param="name")
        if not is_admin and not await self._authenticator.requires_key():
            # From the first key on every request needs one; without an admin key nobody could add
            # keys.
            raise InvalidInput("the first API key must be an admin key", param="admin")
        key = "hf_" + secrets.token_urlsafe(32)
        row = await self._gateway.submit(
            AddApiKey(
                id="key_" + secrets.token_hex(8),
                tenant=tenant,
                name=name,
                hash=hash_key(key),
                is_admin=is_admin,
            )
        )
        self._authenticator.invalidate()
        return json_reply(
            {**_key_value(row), "key": key}, headers=((b"cache-control", b"no-store"),)
        )

    async def revoke(self, request: Request) -> AnyReply:
        """Revoke an API key permanently."""
        require_admin(request)
        await read_no_fields(request)
        row = await self._gateway.submit(RevokeApiKey(id=request.params["id"]))
        self._authenticator.invalidate()
        return json_reply(_key_value(row))


def _key_value(row: ApiKeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "api_key",
        "tenant": row.tenant,
        "name": row.name,
        "admin": bool(row.is_admin),
        "created_at": int(row.created_at),
        "revoked_at": int(row.revoked_at) if row.revoked_at is not None else None,
    }
