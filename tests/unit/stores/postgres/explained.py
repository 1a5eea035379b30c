"""The plans of prepared statements: of each set of parameters, and the one for all."""

import json
from collections.abc import Sequence
from typing import Any, Literal

import asyncpg

Mode = Literal["force_custom_plan", "force_generic_plan"]
MODES: Sequence[Mode] = ("force_custom_plan", "force_generic_plan")
Node = dict[str, Any]


async def explained(
    connection: asyncpg.Connection,
    text: str,
    types: Sequence[str],
    values: Sequence[Any],
    mode: Mode,
) -> Node:
    """Return the plan with which a prepared statement was executed; nothing that it wrote stays."""
    given = f"({', '.join(types)})" if types else ""
    literals = ", ".join(map(_literal, values, types))
    execute = f"execute if_explained({literals})" if types else "execute if_explained"
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"set local plan_cache_mode = {mode}")
        await connection.execute(f"prepare if_explained {given} as {text}")
        # The setting only affects prepared statements: a plain `explain` is planned for its values.
        found = await connection.fetchval(f"explain (analyze, timing off, format json) {execute}")
    finally:
        await transaction.rollback()
        await connection.execute("deallocate if_explained")
    plan: Node = json.loads(found)[0]["Plan"]
    return plan


async def types_of(connection: asyncpg.Connection, text: str) -> tuple[str, ...]:
    """Return the types of a statement's parameters."""
    prepared = await connection.prepare(text)
    return tuple(one.name for one in prepared.get_parameters())


def _literal(value: object, name: str) -> str:
    if isinstance(value, list):
        items = ", ".join(_literal(one, name.removesuffix("[]")) for one in value)
        return f"array[{items}]::{name}"
    if value is None:
        return f"null::{name}"
    text = rf"\x{value.hex()}" if isinstance(value, bytes) else str(value).replace("'", "''")
    return f"'{text}'::{name}"
