"""A model asked for a turn: with what it remembers where it may, and again where that helps.

The turn is committed before any of this and ends once; attempts and heals are notes on its run.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.core.commands import RecordHeal
from holdfast.core.context import continue_after, project
from holdfast.core.errors import ProviderFailure
from holdfast.core.healing import Symptoms, Treatment, read_heals, treat
from holdfast.core.items import StoredItem
from holdfast.core.provider_state import ProviderState
from holdfast.core.request import TurnRequest
from holdfast.core.turn import Run
from holdfast.engine.gateway import Gateway
from holdfast.engine.log import log
from holdfast.engine.settings import HealSettings
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.provider import Answer, ModelCall, Provider, StateUse

Attempt = Callable[[ModelCall], Awaitable[Answer]]


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's question, and how it is put."""

    run: ActiveRun
    request: TurnRequest
    provider: Provider
    attempt: Attempt
    is_stream: bool
    has_output: Callable[[], bool]


class Asker:
    """Puts questions to providers, and heals what can be healed before anybody has heard a word."""

    def __init__(self, gateway: Gateway, settings: HealSettings | None = None) -> None:
        self._gateway = gateway
        self._settings = settings or HealSettings()

    async def ask(self, asking: Asking) -> Answer:
        """Return the answer, or raise the failure that was left after healing."""
        limit = self._settings.turn_seconds
        try:
            async with asyncio.timeout(limit) as whole:
                return await self._ask(asking)
        except TimeoutError as exc:
            if not whole.expired():
                raise
            raise ProviderFailure(
                f"the turn was not answered within {limit:g} s",
                failure_class="terminal",
                status=504,
                provider_code="turn_timeout",
                provider_type="server_error",
            ) from exc

    async def _ask(self, asking: Asking) -> Answer:
        began = _now()
        history = await asking.run.items()
        earlier = await self._earlier_runs(asking.run)
        done = [heal for run in earlier for heal in read_heals(run.heals)]
        use = asking.provider.state_use(asking.request.model) if asking.request.is_stored else None
        state = await self._state(asking.run, use, history, has_run_before=bool(earlier))
        call = _call(asking, history, state)
        if any(heal.action == "stripped_opaque" for heal in done):
            call = msgspec.structs.replace(call, allows_opaque=False)
        healed = 0
        while True:
            try:
                return await self._attempt(asking, call)
            except ProviderFailure as failure:
                symptoms = _symptoms(failure, asking, call, use, _now() - began)
                treatment = treat(symptoms, done, self._settings.limits())
                if treatment is None:
                    raise
                await self._record(asking.run, treatment, use, healed)
            healed += 1
            done.append(treatment.heal)
            if treatment.drops_state:
                call = msgspec.structs.replace(call, state=None, new_items=[])
            if treatment.strips_opaque:
                call = msgspec.structs.replace(call, allows_opaque=False)
            await asyncio.sleep(treatment.heal.pause_seconds)

    async def _attempt(self, asking: Asking, call: ModelCall) -> Answer:
        """Ask once, and have it noted how long it took and how it went."""
        began, outcome = _now(), "left"
        try:
            answer = await asking.attempt(call)
            outcome = answer.status
            return answer
        except ProviderFailure as failure:
            outcome = failure.failure_class
            raise
        finally:
            seconds = _now() - began
            self._gateway.meter.upstream_answered(asking.provider.name, outcome, seconds)

    async def _earlier_runs(self, run: ActiveRun) -> list[Run]:
        """Return the lost attempts at this step of the turn: what they healed still counts."""
        if run.turn.attempts < 2:
            return []
        runs = await self._gateway.read.runs(run.turn.id)
        return [one for one in runs if one.step == run.turn.step and one.id != run.fence.run_id]

    async def _state(
        self,
        run: ActiveRun,
        use: StateUse | None,
        history: list[StoredItem],
        *,
        has_run_before: bool,
    ) -> tuple[ProviderState, list[bytes]] | None:
        """Return what the provider remembers and what is new to it, if that can be gone on from."""
        if use is None:
            return None
        states = await self._gateway.read.provider_state(run.session.id)
        state = next((state for state in states if state.slot == use.slot), None)
        if state is None:
            return None
        if use.is_mutable and (has_run_before or not _is_untouched(run, history, state)):
            return None
        new = continue_after(history, state.covers_seq)
        return (state, new) if new else None

    async def _record(
        self, run: ActiveRun, treatment: Treatment, use: StateUse | None, number: int
    ) -> None:
        heal = treatment.heal
        self._gateway.meter.healed(heal.failure_class)
        log.info(
            "turn.healed",
            turn_id=run.turn.id,
            session_id=run.session.id,
            failure=heal.failure_class,
            action=heal.action,
            code=heal.code,
        )
        command = RecordHeal(
            fence=run.fence,
            number=number,
            heal=heal,
            drops_state=treatment.drops_state,
            slot=use.slot if use else None,
        )
        await run.record_heal(command)


def _is_untouched(run: ActiveRun, history: list[StoredItem], state: ProviderState) -> bool:
    """Whether no other turn came between: one that broke may have left something there."""
    return all(
        item.turn_number == run.turn.number for item in history if item.seq > state.covers_seq
    )


def _call(
    asking: Asking, history: list[StoredItem], state: tuple[ProviderState, list[bytes]] | None
) -> ModelCall:
    request = asking.request
    return ModelCall(
        model=request.model,
        items=project(history),
        fields=request.fields,
        chat_fields=request.chat_fields,
        is_stream=asking.is_stream,
        session_id=asking.run.session.id,
        keeps_state=request.is_stored,
        state=state[0] if state else None,
        new_items=state[1] if state else [],
    )


def _symptoms(
    failure: ProviderFailure, asking: Asking, call: ModelCall, use: StateUse | None, elapsed: float
) -> Symptoms:
    return Symptoms(
        failure_class=failure.failure_class,
        code=failure.provider_code,
        retry_after=failure.retry_after,
        elapsed_seconds=elapsed,
        has_output=asking.has_output(),
        uses_state=call.state is not None,
        is_state_mutable=use is not None and use.is_mutable,
        has_opaque=call.allows_opaque,
    )


def _now() -> float:
    """Return the loop's own time, which pauses and limits are measured in."""
    return asyncio.get_running_loop().time()
