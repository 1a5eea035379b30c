"""A client that executes its runs itself and only appends their output, batch by batch."""

import asyncio
import random
from typing import TYPE_CHECKING

from holdfast.core.ids import Key, Tenant, TurnId
from holdfast.core.model.items import message
from holdfast.core.transaction.commands import AppendBatch, Appended
from holdfast.engine.sessions.appending import append_batch
from tests.simulation.plan import Op
from tests.simulation.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.clients import Clients

COUNT = 3
"""Batches of a turn."""


def words(op: Op, ordinal: int) -> str:
    """Return the text of a batch."""
    return f"{op.tenant}|{op.key}|{op.id}.{ordinal}"


async def add_batches(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Append a turn's batches one after the other, each until it is answered."""
    known: Appended | None = None
    for ordinal in range(COUNT):
        known = await _add(clients, op, rng, ordinal, known)
        if known is None:
            return
        await asyncio.sleep(op.tool_seconds)


async def _add(
    clients: "Clients", op: Op, rng: random.Random, ordinal: int, known: Appended | None
) -> Appended | None:
    sent = 0

    async def send(replica: Replica) -> Appended:
        nonlocal sent
        sent += 1
        gateway = replica.gateway
        command = AppendBatch(
            tenant=Tenant(op.tenant),
            turn_id=TurnId(f"turn_of_{op.id}"),
            ordinal=ordinal,
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=Key(op.key),
            items=(message("user" if not ordinal else "assistant", words(op, ordinal)),),
            known=known,
            again=sent > 1,
        )
        return await append_batch(gateway, command)

    for _ in range(op.tries):
        heard = await clients.ask(op, rng, send, str(ordinal))
        if isinstance(heard.answer, Appended):
            return heard.answer
        if heard.error != "lost" and not heard.answer.retryable:
            return None
        await asyncio.sleep(0.4)
    return None
