"""Keeps requests within a model's context window: before a call, after a rejection, on request.

What is left out is recorded over the log by the run that owns it. If no model can write the
summary, it is made by rule. A request that cannot be shortened is sent as it is, and its provider
decides.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.budget import Plan, TokenBudget, plan_compaction, role_of
from holdfast.core.compaction.context_options import (
    ContextOptions,
    max_output_tokens,
    read_context_options,
)
from holdfast.core.compaction.records import (
    NOT_SHOWN,
    SUMMARY_OPENING,
    CompactionReason,
    CompactionRecord,
    Elision,
    Name,
    compaction_item,
    expand,
    list_compactions,
    summary_capacity,
    truncate_output,
)
from holdfast.core.compaction.summary_prompts import (
    clip,
    elision_note,
    standalone_summary,
    standing_instructions,
    transcript,
    with_first_request,
)
from holdfast.core.compaction.token_estimate import LEAST_BYTES_PER_TOKEN, Scale, field_tokens
from holdfast.core.errors import (
    CompactionNotFound,
    ProviderFailure,
    SessionMoved,
    SessionNotFound,
)
from holdfast.core.model.items import NewItem, StoredItem, message, read_item
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import Usage
from holdfast.core.projection.growing_list import SharedPrefix
from holdfast.core.transaction.commands import Compact, RecordHeal
from holdfast.engine.logging import log
from holdfast.engine.model_call.attempt import CallAttempt
from holdfast.engine.model_call.long_histories import read_all
from holdfast.engine.model_call.model_limits import ModelLimits
from holdfast.engine.model_call.summarizer import Summarizer, Summary
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextSettings
from holdfast.ports.provider import ModelCall, Provider

Windows = Callable[[str], int | None]
"""Returns the configured context window of a model, or None."""
MIN_BUDGET_TOKENS = 64
SHORT_LOG_BYTES = 16 * 1024
"""How many bytes of a log that is too short for a compaction are quoted in its item."""
NOTHING_ELSE = "(nothing but the messages above)"
MIN_SUMMARY_BYTES = 64
"""The least space for a summary in a compaction item; with less there is no summary."""
OUTDATED_TRIES = 2
"""How often a summary is written again because its range changed meanwhile."""
SMALL_REQUEST_BYTES = 64 * 1024
"""No server rejects a history of this size for its bytes: the lowest common limit is 100 kB."""
_SHARE_AFTER_REJECTION = 0.6
"""After a rejection as too long, at most this share of the request is sent again."""
_SIZE_PER_BYTE = 2
"""What a byte of an item counts for in the size of a history, at least."""


class Bounds(msgspec.Struct, frozen=True):
    """The token limit of a request, and the size that it is reduced to if it exceeds the limit."""

    limit: int
    goal: int
    assumed_window: int | None = None
    """The window that sets the limit, where the model's own is not known."""


class FittedInput(msgspec.Struct, frozen=True):
    """The input of a stateless request, and the items with which its answer begins."""

    items: list[bytes]
    preface: tuple[bytes, ...] = ()


class CompactionResult(msgspec.Struct, frozen=True):
    """A compaction: the item that represents it for a client, and its usage."""

    item: bytes
    usage: Usage | None = None


class Compactor:
    """Keeps requests within the context windows of models."""

    def __init__(
        self,
        gateway: Gateway,
        route: Callable[[str], Provider],
        windows: Windows | None = None,
        settings: ContextSettings | None = None,
    ) -> None:
        self._gateway = gateway
        self._windows: Windows = windows or (lambda _: None)
        self.has_windows = windows is not None
        """Whether any model's window may be known: configured, or learned from a rejection."""
        self.settings = settings or ContextSettings()
        self.small_size = _small_size(self.settings)
        """A history of at most this size fits into the window that is assumed for any model."""
        self.model_limits = ModelLimits()
        self._summarizer = Summarizer(route, gateway.meter)

    # ── before and after a call ─────────────────────────────────────────────────────────────

    def strip_gateway_fields(self, request: TurnRequest) -> TurnRequest:
        """Return a request without the fields for the compaction that the gateway does itself."""
        if "context_management" not in request.fields or self.settings.mode == "off":
            return request
        fields = {k: raw for k, raw in request.fields.items() if k != "context_management"}
        return replace(request, fields=fields)

    def is_unbounded(self, attempt: CallAttempt) -> bool:
        """Whether neither the request nor a known window limits its size, nor an assumed one."""
        fields = attempt.request.fields
        if "truncation" in fields or "context_management" in fields:
            return False
        if self._windows(attempt.model) is not None:
            return False
        if self.model_limits.of(attempt.provider.name, attempt.model).window is not None:
            return False
        history = attempt.history
        return type(history) is SharedPrefix and history.shared.size <= self.small_size

    async def fit(self, attempt: CallAttempt) -> Sequence[StoredItem]:
        """Return the history to send, shortened if it would not fit; the same list if it fits.

        A request that cannot be made to fit is not an error: its provider decides.
        """
        options = read_context_options(attempt.request.fields)
        if options.truncation == "disabled" and not options.compacts:
            return attempt.history
        bounds = self._bounds(attempt, options)
        if bounds is None or await self._fits(attempt, bounds):
            return attempt.history
        if options.truncation == "auto" and not options.compacts:
            return await self._truncated(attempt, bounds)
        reason: CompactionReason = "threshold" if options.compacts else "budget"
        return await self._shorten(attempt, bounds, reason) or attempt.history

    async def shrink(
        self, attempt: CallAttempt, failure: ProviderFailure
    ) -> Sequence[StoredItem] | None:
        """Return a strictly shorter history than the rejected one, or None if there is none.

        The caller drops provider state that contains the longer history.
        """
        size = sum(len(item.body) for item in attempt.history)
        if failure.is_about_bytes and size < SMALL_REQUEST_BYTES:
            return None
        options = read_context_options(attempt.request.fields)
        before = await self._tokens(attempt)
        self.model_limits.rejected(attempt.provider.name, attempt.model, failure, before)
        self.has_windows = True
        if options.truncation == "disabled" and not options.compacts:
            return None
        bounds = self._bounds(attempt, options)
        goal = int(before * _SHARE_AFTER_REJECTION)
        bounds = Bounds(goal, min(goal, bounds.goal) if bounds is not None else goal)
        if options.truncation == "auto" and not options.compacts:
            less = await self._truncated(attempt, bounds)
            return less if less is not attempt.history else None
        return await self._shorten(attempt, bounds, "overflow")

    async def withdraw(self, run: ActiveRun, after_record: int) -> None:
        """Undo the compactions of a turn whose request was still rejected as too long."""
        records = await self._gateway.read.records(run.session)
        later = [r for r in records if r.no > after_record and r.turn_id == run.turn.id]
        for view in reversed(list_compactions(run.session, later)):
            plan = view.compaction or view.elision
            if plan is not None and plan.reason == "overflow":
                with suppress(CompactionNotFound, SessionNotFound):  # erased meanwhile
                    await run.undo_compaction(view.id)

    def learn(self, provider: Provider, call: ModelCall, usage: Usage) -> None:
        """Learn from the number of input tokens that a provider counted."""
        self.model_limits.learn(provider.name, call, usage.input_tokens)

    # ── how much may be sent ────────────────────────────────────────────────────────────────

    def _scale(self, attempt: CallAttempt) -> Scale:
        return self.model_limits.of(attempt.provider.name, attempt.model).scale

    async def _tokens(self, attempt: CallAttempt) -> int:
        scale = self._scale(attempt)
        fixed = field_tokens(attempt.request.fields, scale)
        return fixed + await read_all(attempt.history, scale.items)

    async def _fits(self, attempt: CallAttempt, bounds: Bounds) -> bool:
        """Whether a request is within its limit; the size may tell without reading the history."""
        if bounds.assumed_window is not None:
            scale = self._scale(attempt)
            most = _size(attempt.history) / (_SIZE_PER_BYTE * scale.bytes_per_token)
            if most + field_tokens(attempt.request.fields, scale) <= bounds.limit:
                return True
        return await self._tokens(attempt) <= bounds.limit

    def window(self, upstream: str, model: str) -> int | None:
        """Return a model's context window: as configured, or less if its server rejected that."""
        configured, learned = self._windows(model), self.model_limits.of(upstream, model).window
        if configured is None or learned is None:
            return learned if configured is None else configured
        return min(configured, learned)

    def _bounds(self, attempt: CallAttempt, options: ContextOptions) -> Bounds | None:
        """Return the limits of a request, or None if nothing limits it."""
        settings, request = self.settings, attempt.request
        if settings.mode == "off" and options.truncation != "auto":
            return None
        limit, assumed = options.compact_threshold, None
        known = self.window(attempt.provider.name, attempt.model)
        window = known or settings.unknown_window_tokens
        if window:
            output_tokens = max_output_tokens(request.fields, request.chat_fields)
            reserve = min(output_tokens or settings.reserve_tokens, window // 2)
            most = int((window - reserve) * settings.threshold)
            if limit is None or most < limit:
                limit, assumed = most, window if known is None else None
        if limit is None:
            return None
        return Bounds(limit, int(limit * settings.target / settings.threshold), assumed)

    def _budget(
        self, attempt: CallAttempt, tokens: int, assumed_window: int | None = None
    ) -> TokenBudget:
        scale = self._scale(attempt)
        tokens_left = max(tokens - field_tokens(attempt.request.fields, scale), MIN_BUDGET_TOKENS)
        return TokenBudget(
            tokens=tokens_left,
            scale=scale,
            turn_number=attempt.turn_number,
            summary_tokens=min(self.settings.summary_tokens, tokens_left // 4),
            elides_first=self.settings.mode == "elide",
            assumed_window=assumed_window,
        )

    # ── shortening ──────────────────────────────────────────────────────────────────────────

    async def _truncated(self, attempt: CallAttempt, bounds: Bounds) -> Sequence[StoredItem]:
        """Return the history without its oldest part, for this request alone."""
        history = attempt.history
        plan = await _plan(history, replace(self._budget(attempt, bounds.limit), summary_tokens=0))
        return history if plan is None else truncated(history, plan)

    async def _shorten(
        self, attempt: CallAttempt, bounds: Bounds, reason: CompactionReason
    ) -> Sequence[StoredItem] | None:
        """Compact until the request is within its limits, or nothing more can be left out."""
        if self.settings.mode == "off":
            return None
        assert attempt.run is not None
        history: Sequence[StoredItem] | None = None
        budget = self._budget(attempt, bounds.goal, bounds.assumed_window)
        for is_last in (False, True):
            elides_first = budget.elides_first or is_last
            plan = await _plan(attempt.history, replace(budget, elides_first=elides_first))
            try:
                if plan is None or not await self._record(attempt, plan, budget, reason):
                    break
            except SessionMoved:
                log.info("session.compaction_outdated", session_id=attempt.run.session.id)
            history = await attempt.run.items()
            attempt = replace(attempt, history=history)
            if await self._tokens(attempt) <= bounds.limit:
                break
        return history

    async def _record(
        self, attempt: CallAttempt, plan: Plan, budget: TokenBudget, reason: CompactionReason
    ) -> bool:
        assert attempt.run is not None
        model, prompt = self.settings.model or attempt.model, self.settings.prompt
        summary = None
        if plan.to_seq and self.settings.mode == "model":
            summary = await self._summarize(plan, budget, model, prompt, attempt.run)
        name = self._gateway.ids.new("cmp")
        compaction = await _compaction(name, plan, budget, reason, summary)
        if plan.to_seq and compaction is None:
            return False
        elision = _elision(name, plan, budget, reason)
        record = await self._write(attempt.run, plan, compaction, elision)
        if compaction is not None and read_context_options(attempt.request.fields).compacts:
            text = standalone_summary(attempt.history, plan.keeps, compaction.text)
            attempt.run.preface = (compaction_item(name, text, record),)
        return True

    async def _summarize(
        self, plan: Plan, budget: TokenBudget, model: str, prompt: str, run: ActiveRun | None = None
    ) -> Summary | None:
        """Return a model's summary; a failure is recorded with the run, if there is one."""
        window = self._windows(model)
        reserve = 2 * budget.summary_tokens
        readable = max(window - reserve, window // 2) if window else plan.tokens_before // 2
        summary = await self._summarizer.summarize(
            plan,
            model=model,
            prompt=prompt,
            input_tokens=readable,
            max_tokens=budget.summary_tokens,
            scale=budget.scale,
        )
        if run is not None and summary.usage is not None:
            self._gateway.meter.tokens_used(summary.upstream, summary.model, summary.usage)
        if isinstance(summary, Summary):
            return summary
        log.warning("session.summary_failed", model=model, code=summary.code)
        self._gateway.meter.healed(summary.failure_class, summary.heal.action, 0.0)
        if run is not None:
            await run.record_heal(RecordHeal(fence=run.fence, heal=summary.heal))
        return None

    async def _write(
        self,
        run: ActiveRun,
        plan: Plan,
        compaction: CompactionRecord | None,
        elision: Elision | None,
    ) -> Name:
        """Record a plan, and return the name of its summary's record."""
        session = await run.compact(
            Compact(fence=run.fence, to_seq=plan.to_seq, compaction=compaction, elision=elision)
        )
        made = compaction or elision
        assert made is not None
        mode = compaction.mode if compaction is not None else "elide"
        told = {"assumed_window": made.assumed_window} if made.assumed_window else {}
        log.info(
            "session.compacted", session_id=run.session.id, reason=made.reason, mode=mode, **told
        )
        self._gateway.meter.compacted(mode, made.reason)
        return session.id, session.record_no - (elision is not None)

    # ── requests of which nothing is stored ─────────────────────────────────────────────────

    async def fit_stateless(
        self, request: TurnRequest, provider: Provider, items: Sequence[NewItem]
    ) -> FittedInput:
        """Return the input of a stateless request, shortened if the request asks for it."""
        options = read_context_options(request.fields)
        if not options.compacts and options.truncation != "auto":
            return FittedInput([expand(item.body) for item in items if item.kind not in NOT_SHOWN])
        history = as_stored_items(items)
        attempt = CallAttempt(
            request=request,
            provider=provider,
            model=request.model,
            history=history,
            turn_number=history[-1].turn_number if history else 1,
        )
        bounds = self._bounds(attempt, options)
        if bounds is None or await self._tokens(attempt) <= bounds.limit:
            return FittedInput([item.body for item in history])
        if not options.compacts:
            return FittedInput([item.body for item in await self._truncated(attempt, bounds)])
        return await self._compact_stateless(attempt, bounds)

    async def _compact_stateless(self, attempt: CallAttempt, bounds: Bounds) -> FittedInput:
        """Replace the oldest part of a stateless request by a summary, which the client keeps."""
        history, budget = attempt.history, self._budget(attempt, bounds.goal)
        unchanged = FittedInput([item.body for item in history])
        plan = await _plan(history, budget)
        if plan is None or not plan.to_seq:
            return unchanged
        summary = None
        if self.settings.mode == "model":
            model = self.settings.model or attempt.model
            summary = await self._summarize(plan, budget, model, self.settings.prompt)
        name = self._gateway.ids.new("cmp")
        compaction = await _compaction(name, plan, budget, "threshold", summary)
        if compaction is None:
            return unchanged
        item = compaction_item(name, standalone_summary(history, plan.keeps, compaction.text))
        rest = truncated(history, plan, keeps=False)
        return FittedInput([expand(item), *(each.body for each in rest)], (item,))

    async def summarize_items(
        self, items: Sequence[StoredItem], *, model: str, prompt: str | None, max_bytes: int
    ) -> tuple[str | None, Usage | None]:
        """Return a summary of items that are not stored, and its usage.

        None, without a call, if no summary would fit into an item of `max_bytes`.
        """
        instructions = standing_instructions(items)
        max_transcript = summary_capacity(max_bytes) - len(instructions.encode())
        if max_transcript < MIN_SUMMARY_BYTES:
            return None, None
        budget = self._whole_budget(items, -1)
        everything = Plan(
            to_seq=len(items), replaced=tuple(items),
            tokens_before=sum(budget.scale.item(item.body) for item in items),
        )  # fmt: skip
        summary = None
        if self.settings.mode == "model":
            summary = await self._summarize(
                everything,
                budget,
                self.settings.model or model,
                prompt or self.settings.prompt,
            )
        # If no model writes the summary, the beginning and the end of the transcript are used.
        size = min(int(self.settings.summary_tokens * budget.scale.bytes_per_token), max_transcript)
        text = (
            clip(summary.text, max_transcript) if summary is not None else transcript(items, size)
        )
        usage = summary.usage if summary else None
        return (f"{instructions}\n\n{text}" if instructions else text), usage

    # ── on request ──────────────────────────────────────────────────────────────────────────

    async def compact(
        self,
        run: ActiveRun,
        *,
        model: str | None,
        reason: CompactionReason = "asked",
        prompt: str | None = None,
    ) -> CompactionResult:
        """Replace the whole history by one summary, if that is shorter."""
        for _ in range(OUTDATED_TRIES):
            try:
                return await self._compact(run, model, reason, prompt)
            except SessionMoved:
                log.info("session.compaction_outdated", session_id=run.session.id)
        return await self._compact(run, model, reason, prompt)

    async def _compact(
        self, run: ActiveRun, model: str | None, reason: CompactionReason, prompt: str | None
    ) -> CompactionResult:
        history = await run.items()
        budget = self._whole_budget(history, run.turn.number)
        plan = await _plan(history, budget)
        name = self._gateway.ids.new("cmp")
        summary, compaction = None, None
        if plan is not None:
            writer = self.settings.model or model
            if self.settings.mode != "elide" and writer is not None:
                text = prompt or self.settings.prompt
                summary = await self._summarize(plan, budget, writer, text, run)
            compaction = await _compaction(name, plan, budget, reason, summary)
        usage = summary.usage if summary is not None else None
        if plan is None or compaction is None:
            text = transcript(history, SHORT_LOG_BYTES)
            item = compaction_item(name, text, (run.session.id, 0))
            return CompactionResult(item, usage)
        # The run of this compaction counts its usage: the record must not count it again.
        compaction = replace(compaction, usage=None)
        elision = _elision(name, plan, budget, reason)
        record = await self._write(run, plan, compaction, elision)
        text = standalone_summary(history, plan.keeps, compaction.text)
        return CompactionResult(compaction_item(name, text, record), usage)

    def _whole_budget(self, items: Sequence[StoredItem], turn_number: int) -> TokenBudget:
        scale = Scale()
        used = sum(scale.item(item.body) for item in items)
        return TokenBudget(
            tokens=max(used, MIN_BUDGET_TOKENS),
            scale=scale,
            turn_number=turn_number,
            summary_tokens=min(self.settings.summary_tokens, max(used // 3, 1)),
            is_whole=True,
        )


def _small_size(settings: ContextSettings) -> float:
    """Return up to which size a history need not be counted, whatever its model and request are."""
    if settings.mode == "off" or not settings.unknown_window_tokens:
        return math.inf
    # The space for the answer is at most half the window.
    tokens = settings.unknown_window_tokens / 2 * settings.threshold
    return tokens * LEAST_BYTES_PER_TOKEN * _SIZE_PER_BYTE


def _size(history: Sequence[StoredItem]) -> float:
    """Return about what a history counts for, without reading it; unbounded if nobody counted.

    A fork's share of its parent's is estimated until its context is read from the store.
    """
    return history.shared.size if isinstance(history, SharedPrefix) else math.inf


async def _plan(history: Sequence[StoredItem], budget: TokenBudget) -> Plan | None:
    return await read_all(history, lambda items: plan_compaction(items, budget))


def _elision(
    name: str, plan: Plan, budget: TokenBudget, reason: CompactionReason
) -> Elision | None:
    if not plan.cuts:
        return None
    return Elision(
        id=name,
        reason=reason,
        cuts=plan.cuts,
        tokens_before=plan.tokens_before,
        tokens_after=plan.tokens_after,
        assumed_window=budget.assumed_window,
    )


async def _compaction(
    name: str, plan: Plan, budget: TokenBudget, reason: CompactionReason, summary: Summary | None
) -> CompactionRecord | None:
    """Return the compaction of a plan, if it replaces a range and the result is shorter."""
    return await read_all(plan.replaced, lambda _: _compact(name, plan, budget, reason, summary))


def _compact(
    name: str, plan: Plan, budget: TokenBudget, reason: CompactionReason, summary: Summary | None
) -> CompactionRecord | None:
    if not plan.to_seq:
        return None
    size = int(budget.summary_tokens * budget.scale.bytes_per_token)
    # If everything is replaced, quote its beginning and its end: nothing else describes it.
    texts = [transcript(plan.replaced, size) if budget.is_whole else elision_note(plan, size)]
    if summary is not None:
        texts.insert(0, summary.text)
    for text in texts:
        full = with_first_request(plan, text, size // 2)
        shown_tokens = budget.scale.item(message("user", SUMMARY_OPENING + full).body)
        after = plan.tokens_after + max(shown_tokens - budget.summary_tokens, 0)
        if after < plan.tokens_before:
            is_model = summary is not None and text == summary.text
            return CompactionRecord(
                id=name,
                mode="model" if is_model else "elide",
                reason=reason,
                text=full,
                keeps=plan.keeps,
                left_out=len(plan.replaced),
                model=summary.model if summary is not None and is_model else None,
                tokens_before=plan.tokens_before,
                tokens_after=after,
                usage=summary.usage if summary is not None else None,
                assumed_window=budget.assumed_window,
            )
    return None


def quote_answers(items: Sequence[StoredItem]) -> str:
    """Return a short history as text, without the user's messages, which the client keeps."""
    answers = [item for item in items if role_of(item) not in ("user", "system", "developer")]
    texts = (standing_instructions(items), transcript(answers, SHORT_LOG_BYTES))
    return "\n\n".join(text for text in texts if text) or NOTHING_ELSE


def as_stored_items(items: Iterable[NewItem]) -> list[StoredItem]:
    """Return items that are not stored as if they were in a log, with one turn per request."""
    found: list[StoredItem] = []
    turn, was_user = 1, True
    for seq, item in enumerate(items, 1):
        if item.kind in NOT_SHOWN:
            continue
        shown = read_item(expand(item.body))
        stored = StoredItem("", seq, turn, shown.kind, None, shown.call_id, b"", False, shown.body)
        is_user = role_of(stored) == "user"
        turn += is_user and not was_user
        was_user = is_user
        found.append(replace(stored, turn_number=turn))
    return found


def truncated(items: Sequence[StoredItem], plan: Plan, *, keeps: bool = True) -> list[StoredItem]:
    """Return the items that a plan keeps, without any replacement for those left out."""
    cuts = dict(plan.cuts)
    kept = set(plan.keeps) if keeps else set()
    return [
        truncate_output(item, cuts[item.seq]) if item.seq in cuts else item
        for item in items
        if item.seq > plan.to_seq or item.seq in kept
    ]
