"""Operators of schedules: they add, fire, pause, resume and delete them; and people who stop turns.

The instructions of a schedule are the script of its model.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.ids import Key, Tenant, TurnId
from holdfast.core.transaction.commands import StopTurns
from tests.simulation.plan import START, Op
from tests.simulation.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.clients import Clients


SHORT_SECONDS = 2
"""The shortest period: some runs take longer."""


def values_of(op: Op) -> dict[str, Any]:
    """Return the schedule of an op: a period, one time, or both a key's session and its own."""
    when = {"every": f"{SHORT_SECONDS}s" if op.choice == 2 else "30s"}
    if op.choice % 2:
        at = START + timedelta(seconds=op.at + 1.0)
        when = {"at": at.isoformat()}
    return {
        "name": op.id,
        "prompt": f"{op.tenant}|{op.key}|{op.id}",
        "model": "sim-replay",
        "instructions": msgspec.json.encode(op.script).decode(),
        "session": op.key if op.choice < 2 else "isolated",
        "missed": "skip" if op.expects else "once",
        "timeout_seconds": 0.5 if op.expects else 60.0,
        "keep_runs": 1,
        **when,
    }


async def operate(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Change a schedule; repeat the request if there is no answer."""
    tenant, name = Tenant(op.tenant), op.same_as or op.id
    works: dict[str, Callable[[Replica], Coroutine[Any, Any, Any]]] = {
        "schedule": lambda r: r.scheduler.save(tenant, values_of(op)),
        "fire": lambda r: r.scheduler.run_now(tenant, name),
        "pause": lambda r: r.scheduler.pause(tenant, name, is_paused=True),
        "resume": lambda r: r.scheduler.pause(tenant, name, is_paused=False),
        "unschedule": lambda r: r.scheduler.delete(tenant, name),
    }
    await _insist(clients, op, rng, works[op.kind])


async def stop(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Stop the turns of a key, as a chat command that may be delivered more than once."""

    async def work(replica: Replica) -> int:
        return await replica.gateway.submit(
            StopTurns(
                tenant=Tenant(op.tenant),
                key=Key(op.key),
                record_id=TurnId(replica.gateway.ids.new("rec")),
                idempotency_key=f"stop-{op.id}",
            )
        )

    await _insist(clients, op, rng, work)
    if op.expects:
        await asyncio.sleep(0.3)
        await clients.ask(op, rng, work)


async def _insist(
    clients: "Clients",
    op: Op,
    rng: random.Random,
    work: Callable[[Replica], Coroutine[Any, Any, Any]],
) -> None:
    for _ in range(op.tries):
        heard = await clients.ask(op, rng, work)
        if heard.error is None or (heard.error != "lost" and not heard.answer.retryable):
            return
        await asyncio.sleep(0.3)
