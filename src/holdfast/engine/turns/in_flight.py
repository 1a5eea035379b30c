"""Turns in flight and later requests: attach to a turn, supersede it or end it.

Only the worker that runs a turn knows how much of its answer was shown, so it ends the turn. A
later request that sends a history supersedes a turn whose reader has stopped reading (a stop
button); every other request queues behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.accept import CUT_IN_CODES, SUPERSEDED
from holdfast.core.errors import HoldfastError, SessionDeleted, TurnNotFound
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.request import response_id
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Accept, Cancel, LaneLimits, RequestStop, SettleStop
from holdfast.engine.logging import log
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.streaming.live_response import LiveResponse, LiveResponses

ASK_SECONDS = 0.25
"""How long another process may take to report that the client of a run has stopped reading."""
STOP_SECONDS = 0.3
"""How long the worker of a run may take to end it with what was shown."""


class Arrival(msgspec.Struct, kw_only=True):
    """A request that sends a history while a turn of its session is in flight."""

    tenant: Tenant
    body_hash: bytes
    caller: bytes
    """The hash of its API key."""
    is_forced: bool = False
    """Whether it supersedes the turn in flight even if that turn's client still reads."""
    idempotency_key: str | None = None
    retry_count: int = 0
    expected_id: SessionId | None = None
    """The session that the caller expects to be live."""
    limits: LaneLimits
    """The limits of its acceptance."""
    has_ended_turn: bool = False
    """Whether a turn was ended for it, whose place among the open turns it takes."""

    def take_place(self, accept: Accept) -> Accept:
        """Return the command of a request that ended a turn.

        It must not be refused because another one was faster: it waits behind that.
        """
        on_busy = "enqueue" if accept.on_busy == "reject" else accept.on_busy
        return replace(accept, limits=without_turn_limit(self.limits), on_busy=on_busy)


def without_turn_limit(limits: LaneLimits) -> LaneLimits:
    """Return the limits for a request that takes the place of an open turn."""
    return replace(limits, max_tenant_turns=0)


class SameRequest(msgspec.Struct, frozen=True):
    """The turn in flight answers the same request, and none of its answer was shown yet."""

    turn_id: TurnId
    step: int


Meeting = Literal["queue", "superseded", "rolled_back"] | SameRequest
"""What happens to a request that finds a turn in flight; `rolled_back`: its own commit ends it."""


class RunsInFlight:
    """The runs of this process, and decisions about requests that find a run in their session."""

    def __init__(self, gateway: Gateway, lives: LiveResponses) -> None:
        self._gateway = gateway
        self._lives = lives
        self.streams = lives.running
        """The streams of this process."""
        self.runs: dict[SessionId, ActiveRun] = {}
        """The runs that a task of this process executes."""
        self._serving: set[asyncio.Task[None]] = set()
        gateway.store.listen(self._on_woken)
        gateway.worker.on_news = self.serve_requests

    # ── later requests ──────────────────────────────────────────────────────────────────────

    async def meet(self, arrival: Arrival, session: Session) -> Meeting:
        """Decide about a request that finds a run in its session; end a superseded run.

        The same body again, before any output, is the same request. After output was shown, it asks
        for another answer.
        """
        view = None
        if session.active_turn_id is not None:
            view = await self._gateway.read.turn(arrival.tenant, session.active_turn_id)
        if view is None or view.status not in ("running", "requires_action"):
            return "queue"
        turn = view.turn
        if not await self._may_end(arrival, turn):
            return "queue"
        if view.status == "requires_action":
            return await self._meet_tool_wait(arrival, turn, session)
        has_waiters = await self._has_waiters(session.tenant, session.id)
        may_supersede = not has_waiters and not arrival.is_forced
        # What another process has shown is stored with a delay: ask that process first.
        if may_supersede and await self._end_stopped(turn, arrival):
            return "superseded"
        if turn.body_hash == arrival.body_hash and not await self._has_output(turn):
            return SameRequest(turn.id, turn.step)
        if not arrival.is_forced:
            return "queue"
        return await self._supersede(turn, arrival, has_waiters=has_waiters)

    async def _supersede(self, turn: Turn, arrival: Arrival, *, has_waiters: bool) -> Meeting:
        """End a turn for a request that cuts in; if others wait, one of them would start next."""
        if has_waiters:
            return "rolled_back"
        await self._end_for(arrival, turn)
        return "superseded"

    async def _end_for(self, arrival: Arrival, turn: Turn) -> None:
        """End a turn for a request; if its session was deleted meanwhile, it has ended."""
        arrival.has_ended_turn = True
        with suppress(TurnNotFound):
            await self.end(turn, code=SUPERSEDED)

    async def supersede_stopped(
        self, arrival: Arrival, session_id: SessionId, turn_id: TurnId
    ) -> Literal["queue", "superseded", "compare"]:
        """End a run with the same body as a request, if its client has stopped reading.

        Such a request asks for another answer, even if it has no history that would show it. If the
        run may have ended otherwise meanwhile, the request has to be compared with the log.
        """
        run = self.runs.get(session_id)
        is_here = run is not None and run.turn.id == turn_id
        if run is not None and is_here and not self._has_stopped(run.turn, arrival.caller):
            return "queue"
        view = await self._gateway.read.turn(arrival.tenant, turn_id)
        if view is None or view.status != "running":
            return "compare"
        if not await self._may_end(arrival, view.turn):
            return "queue"
        if await self._has_waiters(view.turn.tenant, view.turn.session_id):
            return "queue"
        return "superseded" if await self._end_stopped(view.turn, arrival) else "compare"

    async def _end_stopped(self, turn: Turn, arrival: Arrival) -> bool:
        """End a run if its client has stopped reading; ask its owner if that is another process."""
        if self._find(turn) is None:
            if await self._ask_owner(turn, SUPERSEDED, arrival.caller, ASK_SECONDS):
                arrival.has_ended_turn = True
            # Nobody may end the turn for this request once it counts as connected.
            elif await self._is_granted(turn, arrival.caller, is_granted=False):
                await self._end_for(arrival, turn)
            return arrival.has_ended_turn
        if not self._has_stopped(turn, arrival.caller):
            return False
        await self._end_for(arrival, turn)
        return True

    async def _may_end(self, arrival: Arrival | Accept, turn: Turn) -> bool:
        """Whether a request may end a turn: it was not accepted before, and will not be refused.

        The turn was read before its key is looked up, so that a repeat never ends its own turn.
        """
        if arrival.expected_id not in (None, turn.session_id) or arrival.limits.full_bytes:
            return False
        if arrival.idempotency_key is not None:
            channels = self._gateway.store.channels
            return not await channels.is_recorded(arrival.tenant, arrival.idempotency_key)
        return not (arrival.retry_count and turn.body_hash == arrival.body_hash)

    async def _meet_tool_wait(self, arrival: Arrival, turn: Turn, session: Session) -> Meeting:
        """Decide about a request that finds its session waiting for the client's tools."""
        if not arrival.is_forced:
            return "queue"
        has_waiters = await self._has_waiters(session.tenant, session.id)
        return await self._supersede(turn, arrival, has_waiters=has_waiters)

    async def _has_output(self, turn: Turn) -> bool:
        """Return whether any output was shown, or for another process's run, is stored."""
        live = self._live(turn)
        if live is not None:
            return live.first_output is not None
        runs = await self._gateway.read.runs(turn.id)
        return bool(runs) and runs[-1].partial is not None

    async def _has_waiters(self, tenant: Tenant, session_id: SessionId) -> bool:
        view = await self._gateway.read.session(tenant, session_id=session_id)
        return view is not None and view.queued_turns > 0

    def _has_stopped(self, turn: Turn, caller: bytes) -> bool:
        """Whether the client of a streamed turn has stopped reading, and has this API key."""
        live = self._live(turn)
        if live is None or turn.source != "user" or not _is_stopped(live):
            return False
        return all(client.caller == caller for client in live.clients)

    def _find(self, turn: Turn) -> ActiveRun | None:
        run = self.runs.get(turn.session_id)
        return run if run is not None and run.turn.id == turn.id else None

    def _live(self, turn: Turn) -> LiveResponse | None:
        return self._lives.get(response_id(turn.id, turn.step))

    # ── runs of other processes ─────────────────────────────────────────────────────────────

    async def _ask_owner(self, turn: Turn, code: str, caller: bytes | None, seconds: float) -> bool:
        """Ask the worker of a run to end it; return whether it did within `seconds`."""
        command = RequestStop(tenant=turn.tenant, turn_id=turn.id, code=code, caller=caller)
        if not await self._gateway.submit(command):
            return False
        ended = await self._wait(turn, seconds)
        return ended is not None and ended.outcome == "cancelled"

    async def _is_granted(self, turn: Turn, caller: bytes, *, is_granted: bool) -> bool:
        """Grant or withdraw a request to end a run; return whether it was granted first."""
        command = SettleStop(
            tenant=turn.tenant, turn_id=turn.id, caller=caller, is_granted=is_granted
        )
        return await self._gateway.submit(command)

    async def _wait(self, turn: Turn, seconds: float) -> Turn | None:
        """Return a turn once it has ended, or None if that takes too long or it was deleted."""
        try:
            async with asyncio.timeout(seconds):
                return (await self._gateway.wait_until_ended(turn.tenant, turn.id)).turn
        except (TimeoutError, TurnNotFound, SessionDeleted):
            return None

    async def _interrupt_elsewhere(self, accept: Accept, session: Session) -> bool:
        """Ask the owner of a session's run to end it; return whether it did."""
        turn_id = session.active_turn_id
        view = None
        if turn_id is not None and session.active_run_id is not None:
            view = await self._gateway.read.turn(session.tenant, turn_id)
        if view is None or view.status != "running" or not await self._may_end(accept, view.turn):
            return False
        return await self._ask_owner(view.turn, CUT_IN_CODES["interrupt"], None, STOP_SECONDS)

    def _on_woken(self, woken: Sequence[SessionId], _: Sequence[RunId]) -> None:
        """Check for stop requests if a session with a run of this process was woken."""
        for session_id in woken:
            if session_id in self.runs:
                task = asyncio.get_running_loop().create_task(self._serve_quietly())
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)
                return

    async def _serve_quietly(self) -> None:
        try:
            await self.serve_requests()
        except HoldfastError as exc:
            log.failed("store.stop_requests_not_read", exc)

    async def serve_requests(self) -> None:
        """End the runs of this process that other processes ask to end."""
        if not self.runs:
            return
        requests = {row.run_id: row for row in await self._gateway.read.stop_requests()}
        for run in list(self.runs.values()):
            row = requests.get(run.fence.run_id)
            if row is None:
                continue
            if row.caller is not None and not (
                self._has_stopped(run.turn, row.caller)
                and await self._is_granted(run.turn, row.caller, is_granted=True)
            ):
                continue
            run.stop(row.code)

    # ── interrupting ────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def held(self, accept: Accept) -> AsyncIterator[Accept]:
        """Hold back the output of a session's run while a turn that interrupts it is accepted.

        What was shown so far is stored, so that it is not lost with the run. The command to send is
        returned: if another process has ended the run for it, it takes that turn's place.
        """
        view = await self._gateway.read.session(
            accept.tenant, key=accept.key, session_id=accept.session_id
        )
        run = self.runs.get(view.session.id) if view is not None else None
        # If other turns are queued, one of them would start before this one.
        is_alone = view is not None and run is None and not view.queued_turns
        if view and is_alone and await self._interrupt_elsewhere(accept, view.session):
            accept = replace(accept, limits=without_turn_limit(accept.limits))
        writer = run.writer if run is not None else None
        if writer is None:
            yield accept
            return
        await writer.hold()
        try:
            yield accept
        finally:
            writer.release()

    # ── ending ──────────────────────────────────────────────────────────────────────────────

    async def end(self, turn: Turn, *, code: str) -> Turn:
        """End an open turn as cancelled, with all that was shown; an ended turn is not changed.

        Its worker gets a short time to do it; after that, the turn ends with what is stored.
        """
        run = self._find(turn)
        if run is None:
            await self._ask_owner(turn, code, None, STOP_SECONDS)
        elif run.stop(code):
            await self._wait(turn, STOP_SECONDS)
        return await self._gateway.submit(
            Cancel(tenant=turn.tenant, turn_id=turn.id, reason=_REASONS.get(code, ""), code=code)
        )


_REASONS = {
    "turn_cancelled": "cancelled on request",
    "client_left": "the client left",
    SUPERSEDED: "the client stopped the answer and went on",
}


def _is_stopped(live: LiveResponse) -> bool:
    """Whether all readers of a stream have left, after at least one of them had seen output."""
    first = live.first_output
    if live.publish_after_commit or first is None or not live.clients:
        return False
    has_left = all(client.has_left for client in live.clients)
    return has_left and any(client.position >= first for client in live.clients)
