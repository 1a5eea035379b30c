"""A model asked for a turn: with what it remembers where it may, and again where that helps.

The turn is committed before any of this and ends once. Attempts that failed are child records of
its run, each with what was done about it; every attempt is made from the same committed turn.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.core.healing.policy import (
    MAX_WORDS,
    Heal,
    Symptoms,
    Treatment,
    is_models_own,
    read_heals,
    treat,
)
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.turn import Run
from holdfast.core.transaction.commands import RecordHeal
from holdfast.engine.logging import log
from holdfast.engine.model_call.attempt import Question, find_state
from holdfast.engine.model_call.compaction_events import announced, shifted
from holdfast.engine.model_call.context_fitter import Asked, Fitting
from holdfast.engine.model_call.deadlines import Deadlines
from holdfast.engine.model_call.projection_cache import Projections
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import HealSettings
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.ports.provider import Answer, AnyEvent, ModelCall, Provider
from holdfast.ports.request_context import note_usage

Route = Callable[[str], Provider]
"""Which provider serves a model."""
Fallbacks = Callable[[str], Sequence[str]]
"""Which models may be asked instead of one, in order."""
_REQUEST_STATUSES = frozenset({400, 413, 415, 422})


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """One turn's question, and how it is put."""

    run: ActiveRun
    request: TurnRequest
    writer: JournalWriter | None
    """Whom the answer is told to as it comes, if anybody is."""


class Asker:
    """Puts questions to providers, and heals what can be healed before anybody has heard a word."""

    def __init__(
        self,
        gateway: Gateway,
        route: Route,
        settings: HealSettings | None = None,
        *,
        fallbacks: Fallbacks | None = None,
        fitting: Fitting | None = None,
    ) -> None:
        self._gateway = gateway
        self._route = route
        self._settings = settings or HealSettings()
        self._deadlines = Deadlines(self._settings.turn_seconds)
        self._fallbacks: Fallbacks = fallbacks or (lambda _: ())
        self._fitting = fitting
        self.sent = fitting.sent if fitting is not None else _as_it_is
        """Returns a request as its provider is asked it."""
        self._projections = Projections()

    async def ask(self, asking: Asking) -> Answer:
        """Return the answer, or raise the failure that was left after healing."""
        task, began = self._deadlines.begin(), time.monotonic()
        try:
            earlier: list[Run] = []
            done: list[Heal] = []
            if asking.run.turn.attempts > 1:
                earlier = await self._earlier_runs(asking.run)
                done = [heal for run in earlier for heal in read_heals(run.heals)]
            question = await self._begin(asking, done, has_run_before=bool(earlier))
            while True:
                try:
                    answer = await self._attempt(asking, question)
                except ProviderFailure as failure:
                    symptoms = self._symptoms(asking, question, failure, done)
                    symptoms = replace(symptoms, elapsed_seconds=time.monotonic() - began)
                    question = await self._heal(asking, question, failure, symptoms, done)
                else:
                    return _signed(answer, asking, question.model)
        except asyncio.CancelledError as exc:
            if not self._deadlines.call_off(task):
                raise
            raise ProviderFailure(
                f"the turn was not answered within {self._settings.turn_seconds:g} s",
                failure_class="terminal",
                status=504,
                provider_code="turn_timeout",
                provider_type="server_error",
            ) from exc
        finally:
            self._deadlines.call_off(task)

    async def _heal(
        self,
        asking: Asking,
        question: Question,
        failure: ProviderFailure,
        symptoms: Symptoms,
        done: list[Heal],
    ) -> Question:
        """Return what is asked next, once it may be; raise a failure that nothing is done about."""
        while (treatment := treat(symptoms, done, self._settings.limits())) is not None:
            changed = await self._apply(asking, question, treatment, failure)
            if changed is not None:
                treatment = _witnessed(treatment, question, failure)
                await self._record(asking.run, treatment, question)
                done.append(treatment.heal)
                await asyncio.sleep(treatment.heal.pause_seconds)
                return changed
            # It cannot be made shorter; a model with a larger window may take it as it is.
            symptoms = replace(symptoms, can_shrink=False)
        raise failure

    # ── what is asked ───────────────────────────────────────────────────────────────────────

    async def _begin(
        self, asking: Asking, done: Sequence[Heal], *, has_run_before: bool
    ) -> Question:
        """Return the first question: what earlier runs of this turn learnt still holds."""
        model, allows_opaque, is_plain = asking.request.model, True, False
        for heal in done:
            model = heal.next_model or model
            allows_opaque = allows_opaque and heal.action != "stripped_opaque"
            is_plain = is_plain or heal.action == "repaired"
        run = asking.run
        question = Question(
            provider=self._route(model),
            model=model,
            history=await run.items(),
            turn_number=run.turn.number,
            quarantined=await run.quarantined(),
            allows_opaque=allows_opaque,
            is_plain=is_plain,
        )
        return await self._put(asking, question, has_run_before=has_run_before)

    async def _put(self, asking: Asking, question: Question, *, has_run_before: bool) -> Question:
        """Return a question as short as it must be, with what is remembered where it goes."""
        provider, model, request = question.provider, question.model, asking.request
        if self._fitting is not None:
            asked = Asked(
                run=asking.run, request=request, provider=provider, model=model,
                history=question.history,
            )  # fmt: skip
            history = await self._fitting.fit(asked)
            if history is not question.history:
                question = replace(question, history=history)
        use = provider.state_use(model) if request.is_stored else None
        if use is None:
            return question
        question = replace(question, use=use)
        states = await self._gateway.read.provider_state(asking.run.session.id)
        found = find_state(question, states, has_run_before=has_run_before)
        return replace(question, state=found)

    async def _apply(
        self, asking: Asking, question: Question, treatment: Treatment, failure: ProviderFailure
    ) -> Question | None:
        """Return the next question; None where it would be the same one again."""
        if treatment.drops_state:
            question = replace(question, state=None)
        if treatment.strips_opaque:
            question = replace(question, allows_opaque=False)
        if treatment.repairs:
            question = replace(question, is_plain=True)
        heal = treatment.heal
        if heal.items:
            question = replace(question, quarantined=question.quarantined | set(heal.items))
        if treatment.shrinks:
            return await self._shrink(asking, question, failure)
        if heal.next_model is not None:
            fresh = replace(
                question,
                provider=self._route(heal.next_model),
                model=heal.next_model,
                use=None,
                state=None,
                allows_opaque=True,
                is_plain=False,
            )
            return await self._put(asking, fresh, has_run_before=True)
        return question

    async def _shrink(
        self, asking: Asking, question: Question, failure: ProviderFailure
    ) -> Question | None:
        assert self._fitting is not None
        asked = Asked(
            run=asking.run,
            request=asking.request,
            provider=question.provider,
            model=question.model,
            history=question.history,
        )
        less = await self._fitting.shrink(asked, failure)
        return replace(question, history=less) if less is not None else None

    def _next_model(self, asking: Asking, done: Sequence[Heal]) -> str | None:
        """Return the next model that may be asked instead, and can be asked this."""
        tried = {asking.request.model, *(heal.next_model for heal in done)}
        for model in self._fallbacks(asking.request.model):
            if model not in tried and self._can_be_asked(asking, model):
                return model
        return None

    def _can_be_asked(self, asking: Asking, model: str) -> bool:
        request = self.sent(asking.request)
        call = ModelCall(
            model=model, items=[], fields=request.fields, chat_fields=request.chat_fields,
            is_stream=asking.writer is not None,
        )  # fmt: skip
        try:
            self._route(model).check(call)
        except HoldfastError as error:
            log.warning("fallback.unusable", model=model, code=error.code)
            return False
        return True

    # ── attempts ────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, asking: Asking, question: Question) -> Answer:
        """Ask once, and have it noted how long it took and how it went."""
        request, writer, run = self.sent(asking.request), asking.writer, asking.run
        call = question.call(
            request, run.session.id, self._projections, is_stream=writer is not None
        )
        began, outcome = time.monotonic(), "left"
        try:
            if writer is None:
                answer = await question.provider.answer(call)
            else:
                answer = await tell(question.provider, call, writer, run.preface)
            outcome = answer.status
            note_usage(answer.usage)
            if self._fitting is not None:
                self._fitting.learn(question.provider, call, answer.usage)
            return answer
        except ProviderFailure as failure:
            outcome = failure.failure_class
            raise
        finally:
            seconds = time.monotonic() - began
            self._gateway.meter.upstream_answered(question.provider.name, outcome, seconds)

    def _symptoms(
        self, asking: Asking, question: Question, failure: ProviderFailure, done: Sequence[Heal]
    ) -> Symptoms:
        has_output = asking.writer is not None and asking.writer.has_output
        is_request = (
            failure.failure_class == "terminal"
            and failure.status in _REQUEST_STATUSES
            and not is_models_own(failure.provider_code, failure.message)
        )
        return Symptoms(
            failure_class=failure.failure_class,
            code=failure.provider_code,
            retry_after=failure.retry_after,
            has_output=has_output,
            uses_state=question.state is not None,
            is_state_mutable=question.use is not None and question.use.is_mutable,
            has_opaque=question.allows_opaque and not question.is_plain,
            is_plain=question.is_plain,
            can_shrink=self._fitting is not None,
            suspects=() if has_output else question.suspects(failure),
            blames_request=is_request,
            fallback=None if has_output else self._next_model(asking, done),
        )

    async def _earlier_runs(self, run: ActiveRun) -> list[Run]:
        """Return the lost attempts at this step of the turn: what they healed still counts."""
        runs = await self._gateway.read.runs(run.turn.id)
        return [one for one in runs if one.step == run.turn.step and one.id != run.fence.run_id]

    async def _record(self, run: ActiveRun, treatment: Treatment, question: Question) -> None:
        heal = treatment.heal
        self._gateway.meter.healed(heal.failure_class)
        # A form that a server refuses is a fault of ours, whatever came of it.
        note = log.error if heal.failure_class == "shape" else log.info
        note(
            "turn.healed",
            turn_id=run.turn.id,
            session_id=run.session.id,
            failure=heal.failure_class,
            action=heal.action,
            code=heal.code,
        )
        command = RecordHeal(
            fence=run.fence,
            heal=heal,
            drops_state=treatment.drops_state,
            slot=question.use.slot if question.use else None,
        )
        await run.record_heal(command)


def _witnessed(treatment: Treatment, question: Question, failure: ProviderFailure) -> Treatment:
    """Return the treatment with who failed, and in which words."""
    heal = replace(
        treatment.heal,
        upstream=question.provider.name,
        model=question.model,
        status=failure.status,
        message=failure.message[:MAX_WORDS],
    )
    return replace(treatment, heal=heal)


def _signed(answer: Answer, asking: Asking, model: str) -> Answer:
    """Return an answer behind what was done for it; it says who gave it, if another was asked."""
    preface = asking.run.preface
    if preface:
        answer = replace(answer, items=[*preface, *answer.items])
    if model == asking.request.model:
        return answer
    return replace(
        answer, fields={**answer.fields, "model": msgspec.Raw(msgspec.json.encode(model))}
    )


def _as_it_is(request: TurnRequest) -> TurnRequest:
    return request


class _Telling:
    """Passes on what a model says, behind a preface."""

    def __init__(self, writer: JournalWriter, preface: tuple[bytes, ...]) -> None:
        self._writer = writer
        self._preface = preface
        self.is_begun = False
        """Whether what is said for the model has been said."""
        self.room = writer.room

    def hear(self, events: Sequence[AnyEvent]) -> bool:
        if not self.is_begun:
            self.is_begun = True
            self._writer.hear(announced(self._preface))
        return self._writer.hear([shifted(event, len(self._preface)) for event in events])


async def tell(
    provider: Provider, call: ModelCall, writer: JournalWriter, preface: tuple[bytes, ...]
) -> Answer:
    """Return a model's answer, told as it comes behind the items that the answer begins with."""
    if not preface:
        return await provider.stream(call, writer)
    telling = _Telling(writer, preface)
    answer = await provider.stream(call, telling)
    if not telling.is_begun:
        telling.hear(())
    return answer
