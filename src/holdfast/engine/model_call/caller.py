"""Model calls of a turn: state is chained where possible, failures are healed where that helps.

The turn is committed before any of this and ends once. Each failed attempt is recorded with its
run, together with what was done about it; every attempt starts from the same committed turn, and
from what its context is at that time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from time import monotonic

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.token_estimate import FEWEST_TOKENS
from holdfast.core.errors import HoldfastError, ProviderFailure, release_frames
from holdfast.core.healing.policy import (
    MAX_MESSAGE,
    Heal,
    Symptoms,
    Treatment,
    is_model_limit,
    read_heals,
    treat,
)
from holdfast.core.healing.redaction import plain_code
from holdfast.core.healing.refused_items import find_suspects
from holdfast.core.model.request import DIGEST_BYTES, SentRequest, TurnRequest
from holdfast.core.model.session import sum_usage
from holdfast.core.model.turn import Run
from holdfast.core.projection.growing_list import LargePrefix, SharedPrefix, share
from holdfast.core.transaction.commands import RecordHeal
from holdfast.engine.logging import log
from holdfast.engine.model_call.answered_input import read_answered
from holdfast.engine.model_call.attempt import CallAttempt, find_state
from holdfast.engine.model_call.compaction_events import PrefacedSink
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.model_call.cut_streams import HELD_BACK_AFTER, HeldBackSink, count_cut_stream
from holdfast.engine.model_call.deadlines import Deadlines
from holdfast.engine.model_call.growing_projection import Projected, is_projected, project_grown
from holdfast.engine.model_call.long_histories import LONG_HISTORY
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import HealSettings
from holdfast.ports.provider import Answer, ModelCall, OutputSink, Provider, digest_call
from holdfast.ports.request_context import current_request

Route = Callable[[str], Provider]
"""Returns the provider that serves a model."""
Fallbacks = Callable[[str], Sequence[str]]
"""Returns the fallback models for a model, in order."""


class _Progress(msgspec.Struct):
    """The progress of one call within a turn."""

    began: float
    writer: OutputSink | None
    heals: list[Heal]
    """The heals of this turn, starting with those of earlier runs of the same step."""
    has_run_before: bool = False

    @property
    def has_output(self) -> bool:
        """Whether the client may have seen a part of the answer."""
        return self.writer is not None and self.writer.has_output


class ModelCaller:
    """Calls models, and heals failures while the client has not seen any output."""

    def __init__(
        self,
        gateway: Gateway,
        route: Route,
        settings: HealSettings | None = None,
        *,
        fallbacks: Fallbacks | None = None,
        compactor: Compactor,
    ) -> None:
        self._gateway = gateway
        self._route = route
        self._settings = settings or HealSettings()
        self._limits = self._settings.limits()
        self._deadlines = Deadlines(self._settings.turn_seconds)
        self._fallbacks: Fallbacks = fallbacks or (lambda _: ())
        self._compactor = compactor
        self._cut_streams: dict[str, int] = {}
        """How many streams of a session failed in a row, after their first output."""

    async def call(
        self, run: ActiveRun, request: TurnRequest, writer: OutputSink | None = None
    ) -> Answer:
        """Return the answer, or raise the failure that could not be healed.

        With a `writer` the answer is streamed to it as it arrives.
        """
        context = current_request.get()
        if context is not None:
            context.session_id, context.turn_id = run.session.id, run.turn.id
        progress = _Progress(monotonic(), writer, [])
        task = self._deadlines.start()
        prepared_at = progress.began
        is_held_back = self._cut_streams.get(run.session.id, 0) >= HELD_BACK_AFTER
        try:
            attempt = await self._first_attempt(run, request, progress)
            while True:
                history = attempt.history
                may_be_long = type(history) is not SharedPrefix or history.length > LONG_HISTORY
                projected = await _project_long(attempt) if may_be_long else None
                call = self._build_call(run, attempt, projected, is_stream=writer is not None)
                sent_at, outcome = monotonic(), "left"
                try:
                    if writer is None:
                        answer = await attempt.provider.answer(call)
                    else:
                        sink = HeldBackSink(writer) if is_held_back else writer
                        answer = await _stream(attempt.provider, call, sink, run.preface)
                    outcome = answer.status
                    if context is not None:
                        # Earlier calls are those before steps with tools of the gateway.
                        context_usage, usage = context.usage, answer.usage
                        context.usage = (
                            usage if context_usage is None else sum_usage(context_usage, usage)
                        )
                    break
                except ProviderFailure as exc:
                    outcome, failure = exc.failure_class, exc
                finally:
                    seconds = monotonic() - sent_at
                    self._gateway.meter.upstream_answered(
                        attempt.provider.name, outcome, seconds, sent_at - prepared_at
                    )
                attempt = await self._heal(run, attempt, failure, progress)
                release_frames(failure)
                prepared_at = monotonic()
        except asyncio.CancelledError as exc:
            if not self._deadlines.stop(task):
                raise
            raise self._timeout() from exc
        finally:
            self._deadlines.stop(task)
        self._cut_streams.pop(run.session.id, None)
        run.left_out, run.placeholders = attempt.left_out, attempt.placeholders
        usage = answer.usage
        if usage is not None and usage.input_tokens >= FEWEST_TOKENS:
            self._compactor.learn(attempt.provider, call, usage)
        if run.preface or attempt.model != request.model:
            return _with_origin(answer, run.preface, attempt.model, request.model)
        return answer

    def _timeout(self) -> ProviderFailure:
        return ProviderFailure(
            f"the turn was not answered within {self._settings.turn_seconds:g} s",
            failure_class="terminal",
            status=504,
            provider_code="turn_timeout",
            provider_type="server_error",
        )

    # ── building attempts ───────────────────────────────────────────────────────────────────

    async def _first_attempt(
        self, run: ActiveRun, request: TurnRequest, progress: _Progress
    ) -> CallAttempt:
        """Return the first attempt, including the changes of heals in earlier runs of this turn."""
        model, allows_opaque, is_plain = request.model, True, False
        left_out, compactor = run.left_out, self._compactor
        if run.turn.attempts > 1:
            await self._load_heals(run, progress)
            for heal in progress.heals:
                model = heal.next_model or model
                allows_opaque = allows_opaque and heal.action != "stripped_opaque"
                is_plain = is_plain or heal.action == "repaired"
                # Another model is sent everything again.
                left_out = run.left_out if heal.next_model else heal.left_out or left_out
        attempt = CallAttempt(
            request=request,
            provider=self._route(model),
            model=model,
            history=await run.items(),
            turn_number=run.turn.number,
            run=run,
            allows_opaque=allows_opaque,
            is_plain=is_plain,
        )
        session = run.session
        if session.record_no or session.parent_id is not None:
            attempt = replace(attempt, quarantined=await run.quarantined())
        if left_out:
            attempt = attempt.without(left_out)
        history = attempt.history
        is_small = type(history) is SharedPrefix and history.shared.size <= compactor.small_size
        may_be_bounded = compactor.has_windows or request.fields or not is_small
        state_use = attempt.provider.state_use
        if not may_be_bounded and (
            state_use is None or state_use(model, request.chat_fields) is None
        ):
            return attempt
        return await self._prepare(attempt, has_run_before=progress.has_run_before)

    async def _load_heals(self, run: ActiveRun, progress: _Progress) -> None:
        """Load the heals of lost runs of this step: they count towards the limits."""
        for earlier in await self.earlier_runs(run):
            progress.has_run_before = True
            progress.heals += read_heals(earlier.heals)

    async def earlier_runs(self, run: ActiveRun) -> list[Run]:
        """Return the runs that tried the same step of the turn before."""
        runs = await run.all_runs()
        return [
            other for other in runs if other.step == run.turn.step and other.id != run.fence.run_id
        ]

    async def _prepare(self, attempt: CallAttempt, *, has_run_before: bool) -> CallAttempt:
        """Fit an attempt into the model's window and chain it to the provider's stored state."""
        compactor, request, run = self._compactor, attempt.request, attempt.run
        if not compactor.is_unbounded(attempt):
            history = await compactor.fit(attempt)
            if history is not attempt.history:
                attempt = replace(attempt, history=history)
        state_use = attempt.provider.state_use
        use = state_use(attempt.model, request.chat_fields) if state_use is not None else None
        if use is None or run is None or not (request.is_stored or use.is_local):
            return attempt
        attempt = replace(attempt, use=use)
        states = await self._gateway.read.provider_state(run.session.id)
        if use.is_mutable and states and not has_run_before:
            # A turn that is resumed after an interruption counts its attempts anew.
            has_run_before = bool(await self.earlier_runs(run))
        return replace(attempt, state=find_state(attempt, states, has_run_before=has_run_before))

    def _build_call(
        self,
        run: ActiveRun,
        attempt: CallAttempt,
        projected: Projected | None,
        *,
        is_stream: bool,
    ) -> ModelCall:
        """Return the call for an attempt, and record the request with its run."""
        session_id = run.session.id
        context = current_request.get()
        if context is not None:
            context.model, context.upstream = attempt.model, attempt.provider.name
        items, digest = projected or project_grown(attempt.history, attempt.quarantined)
        request = attempt.request
        if "context_management" in request.fields:
            request = self._compactor.strip_gateway_fields(request)
        call = ModelCall(
            model=attempt.model,
            items=items,
            fields=request.fields,
            chat_fields=request.chat_fields,
            is_stream=is_stream,
            session_id=session_id,
            answer_seq=run.session.head_seq + 1,
            keeps_state=request.is_stored or attempt.use is not None,
            allows_opaque=attempt.allows_opaque and not attempt.is_plain,
            is_plain=attempt.is_plain,
            approval_seconds=run.approval_seconds,
            permissions=run.permissions,
        )
        if attempt.state is not None:
            state, new_items = attempt.state
            call = replace(call, state=state, new_items=new_items)
        requested = call
        if run.requested is not None:
            requested = self._as_requested(run.requested, call)
        # Enough to rebuild the request from the log later, and to verify the result.
        run.sent = SentRequest(
            digest_call(blake2b(digest_size=DIGEST_BYTES, key=digest), requested),
            run.session.record_no,
            attempt.provider.name,
            call.state.covers_seq if call.state is not None else None,
            not attempt.allows_opaque,
            attempt.is_plain,
            attempt.left_out,
            run.session.head_seq if run.requested is not None else None,
        )
        return call

    def _as_requested(self, request: TurnRequest, call: ModelCall) -> ModelCall:
        """Return the call with the tools as requested; what they resolve to is not in the log."""
        request = self._compactor.strip_gateway_fields(request)
        return replace(call, fields=request.fields, chat_fields=request.chat_fields)

    # ── healing ─────────────────────────────────────────────────────────────────────────────

    async def _heal(
        self, run: ActiveRun, attempt: CallAttempt, failure: ProviderFailure, progress: _Progress
    ) -> CallAttempt:
        """Return the next attempt, after its pause; raise if the failure cannot be healed."""
        failed_at = monotonic()
        symptoms = self._symptoms(attempt, failure, progress)
        suspects = await self._suspects(run, attempt, failure, progress)
        if suspects:
            symptoms = replace(symptoms, unanswered=(*attempt.left_out, *suspects))
        while (treatment := treat(symptoms, progress.heals, self._limits)) is not None:
            if treatment.heal.left_out and await self._withdraw_compactions(run, progress):
                # Shorter did not help: what is left out may be the cause, and the rest fit before.
                attempt = replace(attempt, history=await run.items())
            changed = await self._apply(attempt, treatment, failure)
            if changed is not None:
                treatment = _with_failure(treatment, attempt, failure)
                # Recorded before the pause: a crash during it must not reset the counts.
                await self._record(run, treatment, attempt)
                heal = treatment.heal
                progress.heals.append(heal)
                await asyncio.sleep(heal.pause_seconds)
                seconds = monotonic() - failed_at
                self._gateway.meter.healed(heal.failure_class, heal.action, seconds)
                return await self._with_current_context(run, changed)
            # It cannot be shortened; a model with a larger window may accept it as it is.
            symptoms = replace(symptoms, can_shrink=False)
        if progress.has_output and (failure.may_refuse_input or failure.may_fail_on_input):
            count_cut_stream(self._cut_streams, run.session.id)
        if failure.failure_class == "overflow":
            await self._withdraw_compactions(run, progress)
        raise failure

    async def _suspects(
        self, run: ActiveRun, attempt: CallAttempt, failure: ProviderFailure, progress: _Progress
    ) -> tuple[int, ...]:
        """Return the earlier input that the provider may refuse, without what is left out already.

        A failure of the server is a refusal only if it repeats: the turn before failed with it too.
        """
        if progress.has_output or not (failure.may_refuse_input or failure.may_fail_on_input):
            return ()
        first, last = await run.own_range()
        if not any(item.seq < first for item in attempt.history):
            return ()
        answered = await read_answered(self._gateway.read, run, attempt.history)
        code = failure.provider_code or failure.code
        if not failure.may_refuse_input and answered.last_error != code:
            return ()
        found = find_suspects(attempt.history, first, last, answered=answered.upto)
        questions = tuple(seq for seq in found.questions if seq not in attempt.left_out)
        return questions or tuple(seq for seq in found.unanswered if seq not in attempt.left_out)

    async def _with_current_context(self, run: ActiveRun, attempt: CallAttempt) -> CallAttempt:
        """Return the attempt without items that were hidden or erased since its context was read.

        They must not be sent again, and neither must a summary of them.
        """
        if not await run.is_context_outdated():
            return attempt
        run.preface = ()
        quarantined = attempt.quarantined | await run.quarantined()
        attempt = replace(attempt, history=await run.items(), quarantined=quarantined, state=None)
        if attempt.left_out:
            attempt = attempt.without(attempt.left_out)
        return await self._prepare(attempt, has_run_before=True)

    async def _withdraw_compactions(self, run: ActiveRun, progress: _Progress) -> bool:
        """Undo compactions that did not make the request acceptable; return if there were any."""
        shrunk = [heal.sent for heal in progress.heals if heal.action == "shrunk"]
        before = [sent.records for sent in shrunk if sent is not None]
        if before:
            await self._compactor.withdraw(run, min(before))
        return bool(before)

    def _symptoms(
        self, attempt: CallAttempt, failure: ProviderFailure, progress: _Progress
    ) -> Symptoms:
        has_output = progress.has_output
        blames_request = (
            failure.failure_class == "terminal"
            and failure.may_refuse_input
            and not is_model_limit(failure.provider_code, failure.message)
        )
        return Symptoms(
            failure_class=failure.failure_class,
            code=failure.provider_code,
            retry_after=failure.retry_after,
            elapsed_seconds=monotonic() - progress.began,
            has_output=has_output,
            uses_state=attempt.state is not None,
            is_state_mutable=attempt.use is not None and attempt.use.is_mutable,
            has_opaque=attempt.allows_opaque and not attempt.is_plain,
            is_plain=attempt.is_plain,
            can_shrink=True,
            suspects=() if has_output else attempt.poison_candidates(failure),
            blames_request=blames_request,
            fallback=None if has_output else self._next_model(attempt, progress),
        )

    def _next_model(self, attempt: CallAttempt, progress: _Progress) -> str | None:
        """Return the next fallback model that can express the request."""
        requested = attempt.request.model
        tried = {requested, *(heal.next_model for heal in progress.heals)}
        for model in self._fallbacks(requested):
            if model not in tried and self._is_callable(attempt, model, progress):
                return model
        return None

    def _is_callable(self, attempt: CallAttempt, model: str, progress: _Progress) -> bool:
        request = self._compactor.strip_gateway_fields(attempt.request)
        call = ModelCall(
            model=model,
            items=[],
            fields=request.fields,
            chat_fields=request.chat_fields,
            is_stream=progress.writer is not None,
        )
        try:
            self._route(model).check(call)
        except HoldfastError as error:
            log.info("upstream.fallback_skipped", model=model, code=error.code)
            return False
        return True

    async def _apply(
        self, attempt: CallAttempt, treatment: Treatment, failure: ProviderFailure
    ) -> CallAttempt | None:
        """Return the attempt after a treatment, or None if it would be the same again."""
        if treatment.drops_state:
            attempt = replace(attempt, state=None)
        if treatment.strips_opaque:
            attempt = replace(attempt, allows_opaque=False)
        if treatment.repairs:
            attempt = replace(attempt, is_plain=True)
        heal = treatment.heal
        if heal.items:
            attempt = replace(attempt, quarantined=attempt.quarantined | set(heal.items))
        if heal.left_out:
            attempt = attempt.without(heal.left_out)
        if treatment.shrinks:
            less = await self._compactor.shrink(attempt, failure)
            return replace(attempt, history=less) if less is not None else None
        if heal.next_model is not None:
            attempt = await _with_all(attempt)
            fresh = replace(
                attempt,
                provider=self._route(heal.next_model),
                model=heal.next_model,
                use=None,
                state=None,
                allows_opaque=True,
                is_plain=False,
            )
            return await self._prepare(fresh, has_run_before=True)
        return attempt

    async def _record(self, run: ActiveRun, treatment: Treatment, attempt: CallAttempt) -> None:
        heal = treatment.heal
        # A request form that a server rejects is a bug of the gateway, even if the heal succeeds.
        note = log.error if heal.failure_class == "shape" else log.info
        note(
            "turn.healed",
            turn_id=run.turn.id,
            session_id=run.session.id,
            failure=heal.failure_class,
            action=heal.action,
            code=plain_code(heal.code),
        )
        command = RecordHeal(
            fence=run.fence,
            heal=heal,
            drops_state=treatment.drops_state,
            slot=attempt.use.slot if attempt.use else None,
        )
        await run.record_heal(command)


async def _with_all(attempt: CallAttempt) -> CallAttempt:
    """Return the attempt with what was left out: without it another model failed as well."""
    run = attempt.run
    if run is None or attempt.left_out == run.left_out:
        return attempt
    quarantined = attempt.quarantined - attempt.placeholders
    attempt = replace(attempt, history=await run.items(), quarantined=quarantined)
    return attempt.without(run.left_out)


async def _project_long(attempt: CallAttempt) -> Projected | None:
    """Project a long history without blocking the event loop; None if that is little work.

    The thread works on a list of its own: the cached one may grow meanwhile.
    """
    history = share(attempt.history)
    is_large = type(history) is LargePrefix
    if not is_large and is_projected(history, attempt.quarantined, LONG_HISTORY):
        return None
    own = share(history[:])
    items, digest = await asyncio.to_thread(project_grown, own, attempt.quarantined)
    if own.shared.forms and not is_large:
        history.shared.keep_form(own.shared.forms[0])
    return LargePrefix(items.shared, items.length), digest


def _stream(
    provider: Provider,
    call: ModelCall,
    writer: OutputSink | HeldBackSink,
    preface: tuple[bytes, ...],
) -> Awaitable[Answer]:
    """Stream an answer to the writer, after its preface."""
    if preface:
        return _stream_after(preface, provider, call, writer)
    if type(writer) is HeldBackSink:
        return _stream_whole(provider, call, writer)
    return provider.stream(call, writer)


async def _stream_whole(provider: Provider, call: ModelCall, sink: HeldBackSink) -> Answer:
    answer = await provider.stream(call, sink)
    await sink.show()
    return answer


async def _stream_after(
    preface: tuple[bytes, ...],
    provider: Provider,
    call: ModelCall,
    writer: OutputSink | HeldBackSink,
) -> Answer:
    sink = PrefacedSink(writer, preface)
    answer = await provider.stream(call, sink)
    sink.begin()
    if type(writer) is HeldBackSink:
        await writer.show()
    return answer


def _with_failure(
    treatment: Treatment, attempt: CallAttempt, failure: ProviderFailure
) -> Treatment:
    """Return a treatment whose heal names the failed provider and its message."""
    heal = replace(
        treatment.heal,
        upstream=attempt.provider.name,
        model=attempt.model,
        status=failure.status,
        message=failure.message[:MAX_MESSAGE],
        sent=attempt.run.sent if attempt.run is not None else None,
    )
    return replace(treatment, heal=heal)


def _with_origin(answer: Answer, preface: tuple[bytes, ...], model: str, requested: str) -> Answer:
    """Return an answer with its preface, and with the name of the model if it was a fallback."""
    if preface:
        answer = replace(answer, items=[*preface, *answer.items])
    if model == requested:
        return answer
    fields = {**answer.fields, "model": msgspec.Raw(msgspec.json.encode(model))}
    return replace(answer, fields=fields)
