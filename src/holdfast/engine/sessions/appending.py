"""Items added without a model call: in one commit where the lane is free, else as a short turn."""

import asyncio

from msgspec.structs import replace

from holdfast.core.errors import (
    LaneTimeout,
    SessionBusy,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)
from holdfast.core.ids import RunId
from holdfast.core.model.turn import OnBusy, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Append,
    AppendBatch,
    Appended,
    Finish,
    Repeated,
)
from holdfast.engine.sessions.gateway import Gateway, ended_error
from holdfast.engine.sessions.submission import SUBMIT_TRIES, resubmit

BUSY_SECONDS = 0.02
"""How often a batch checks whether the lane of its busy session is free."""


async def append_items(
    gateway: Gateway, command: Append, *, on_busy: OnBusy = "enqueue"
) -> Appended:
    """Append items to a session; if its lane is taken, wait unless `on_busy` is `reject`."""
    try:
        return await gateway.submit(command)
    except SessionBusy:
        if on_busy == "reject":
            raise
    return await _append_in_turn(gateway, command, on_busy)


async def append_batch(gateway: Gateway, command: AppendBatch) -> Appended:
    """Append a batch to a turn that runs outside this gateway; wait while the lane is taken."""
    try:
        try:
            return await gateway.store.submit(command)
        except StoreUnavailable:
            return await resubmit(gateway.store, command, tries=SUBMIT_TRIES - 1)
    except SessionBusy:
        pass
    except (StoreUnavailable, StoreClosed):
        raise
    except StoreError:
        # The turn id is taken, perhaps by this batch, whose first reply was lost.
        if command.again:
            raise
    command = replace(command, again=True)
    seconds = gateway.settings.max_wait_seconds
    elapsed = asyncio.get_running_loop().time  # monotonic: clock changes do not matter
    until = elapsed() + seconds
    while True:
        await asyncio.sleep(BUSY_SECONDS)
        try:
            return await gateway.submit(command)
        except SessionBusy as exc:
            if elapsed() >= until:
                message = f"a batch of turn {command.turn_id} waited {seconds:g} seconds"
                raise LaneTimeout(message) from exc


async def _append_in_turn(gateway: Gateway, command: Append, on_busy: OnBusy) -> Appended:
    accept = Accept(
        tenant=command.tenant,
        turn_id=command.turn_id,
        run_id=RunId(gateway.ids.new("run")),
        worker=command.worker,
        candidate_id=command.candidate_id,
        key=command.key,
        session_id=command.session_id,
        items=command.items,
        source=command.source,
        on_busy=on_busy,
        idempotency_key=command.idempotency_key,
        body_hash=command.body_hash,
        retry_count=command.retry_count,
        limits=replace(gateway.limits, full_bytes=command.limits.full_bytes),
    )
    admission = await gateway.accept(accept)
    if isinstance(admission, Repeated):
        return Appended(admission.session, await completed_turn(gateway, admission))
    run = await gateway.enter(admission)
    try:
        ended = await run.finish(Finish(fence=run.fence, outcome="completed"))
    finally:
        gateway.leave(run)
    return Appended(ended.session, ended.turn)


async def completed_turn(gateway: Gateway, repeated: Repeated) -> Turn:
    """Return the turn of a repeated request once it is completed; raise if it ends otherwise."""
    turn = repeated.turn
    if turn.is_open:
        turn = (await gateway.wait_until_ended(turn.tenant, turn.id)).turn
    if turn.outcome == "completed":
        return turn
    raise ended_error(turn)
