"""Clients that answer approval requests: the sender of the turn, or a stranger."""

import asyncio
import random
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.ids import Tenant
from holdfast.core.tools.approval_words import ApprovalAnswer
from holdfast.engine.turns.approvals import Approver
from tests.simulation.plan import Op
from tests.simulation.replica import Replica, sender_of

if TYPE_CHECKING:
    from tests.simulation.clients import Clients

LOOKS = 8
"""How often a client looks for a request before it gives up."""
LOOK_SECONDS = 0.2
STRANGER = "stranger"


class GivenAnswer(msgspec.Struct, frozen=True):
    """An answer that was accepted."""

    name: str
    approve: bool
    by: str
    turn_id: str


async def answer_approval(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Look until something waits for an approval, and answer it once."""
    by = STRANGER if op.expects else sender_of(op.tenant)

    async def look(replica: Replica) -> str | None:
        waiting = await replica.approvals.pending(Tenant(op.tenant))
        return waiting[op.choice // 2 % len(waiting)].id if waiting else None

    for _ in range(LOOKS):
        heard = await clients.ask(op, rng, look, "look")
        if isinstance(heard.answer, str):
            break
        await asyncio.sleep(LOOK_SECONDS)
    else:
        return
    answer = ApprovalAnswer(heard.answer, approve=op.choice % 2 == 0)

    async def send(replica: Replica) -> GivenAnswer:
        ticket = await replica.approvals.answer(Tenant(op.tenant), answer, Approver(sender=by))
        return GivenAnswer(answer.name, answer.approve, by, ticket.turn.id)

    for _ in range(op.tries):
        heard = await clients.ask(op, rng, send, answer.name)
        if heard.error != "lost" and not getattr(heard.answer, "retryable", False):
            return
        await asyncio.sleep(LOOK_SECONDS)
