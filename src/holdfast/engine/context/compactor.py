"""Keeps what a model is shown within its window: before it is sent, after it was refused, on wish.

What is left out is recorded over the log by the run that owns it. A summary that cannot be had
from a model is made up of what is known; a request that cannot be made shorter goes as it is, and
its provider judges it.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.budget import Plan, Room, plan, role_of
from holdfast.core.compaction.context_options import (
    ContextOptions,
    read_context_options,
    wanted_output,
)
from holdfast.core.compaction.records import (
    NOT_SHOWN,
    SUMMARY_OPENING,
    Compaction,
    CompactionReason,
    Elision,
    Name,
    carriable,
    compaction_item,
    expand,
    shortened,
)
from holdfast.core.compaction.summary_prompts import (
    clip,
    left_out_note,
    quoted,
    standing_words,
    told_alone,
    transcript,
)
from holdfast.core.compaction.token_estimate import Scale, field_tokens
from holdfast.core.errors import ProviderFailure, SessionMoved
from holdfast.core.model.items import NewItem, StoredItem, message, read_item
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import Usage
from holdfast.core.transaction.commands import Compact, RecordHeal
from holdfast.engine.context.model_limits import ModelLimits
from holdfast.engine.context.summarizer import Summarizer, Summary
from holdfast.engine.logging import log
from holdfast.engine.model_call.context_fitter import CompactionResult, FitRequest
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextSettings
from holdfast.ports.provider import ModelCall, Provider

Windows = Callable[[str], int | None]
"""The context window of a model, where it is configured."""
LEAST_ROOM = 64
WHOLE_BYTES = 16 * 1024
"""How much of a log too short to be compacted is carried by its item as it is."""
LEAST_DIGEST = 64
"""How many bytes a summary that a client is to carry has at least, or there is none."""
OUTDATED_TRIES = 2
"""How often a summary is made anew because something of its range was hidden meanwhile."""
_SHARE_AFTER_REFUSAL = 0.6
"""How much of a request that was refused as too long is sent at most."""


class Bounds(msgspec.Struct, frozen=True):
    """How many tokens a request may have, and how many are left once it had more."""

    most: int
    goal: int


class SizedCall(msgspec.Struct, frozen=True):
    """What is asked of whom; the size of it is judged by this."""

    upstream: str
    model: str
    request: TurnRequest
    turn_number: int


class FittedInput(msgspec.Struct, frozen=True):
    """A request of which nothing is kept, as it is sent, and what its answer begins with."""

    items: list[bytes]
    preface: tuple[bytes, ...] = ()


class Compactor:
    """Fits requests into windows; see `fitting.ContextFitter`."""

    def __init__(
        self,
        gateway: Gateway,
        route: Callable[[str], Provider],
        windows: Windows | None = None,
        settings: ContextSettings | None = None,
    ) -> None:
        self._gateway = gateway
        self._windows: Windows = windows or (lambda _: None)
        self.settings = settings or ContextSettings()
        self.model_limits = ModelLimits()
        self._summariser = Summarizer(route, gateway.meter)

    # ── before and after ────────────────────────────────────────────────────────────────────

    async def fit(self, asked: FitRequest) -> Sequence[StoredItem]:
        """Return what to show: the history, or less of it where it would not fit."""
        wish = read_context_options(asked.request.fields)
        if wish.truncation == "disabled" and not wish.compacts:
            return asked.history
        bounds = self._bounds(asked.provider.name, asked.model, asked.request, wish)
        if bounds is None:
            return asked.history
        put = _put(asked)
        if self._tokens(put, asked.history) <= bounds.most:
            return asked.history
        if wish.truncation == "auto" and not wish.compacts:
            return self._truncated(put, asked.history, bounds)
        reason: CompactionReason = "threshold" if wish.compacts else "budget"
        return await self._shorten(asked, bounds, reason) or asked.history

    def sent(self, request: TurnRequest) -> TurnRequest:
        """Return a request without the compaction that is ours to do."""
        if "context_management" not in request.fields or self.settings.mode == "off":
            return request
        fields = {k: raw for k, raw in request.fields.items() if k != "context_management"}
        return replace(request, fields=fields)

    async def shrink(
        self, asked: FitRequest, failure: ProviderFailure
    ) -> Sequence[StoredItem] | None:
        """Return less than was refused, or None."""
        wish = read_context_options(asked.request.fields)
        put = _put(asked)
        before = self._tokens(put, asked.history)
        self.model_limits.refused(put.upstream, put.model, failure, before)
        if wish.truncation == "disabled" and not wish.compacts:
            return None
        bounds = self._bounds(put.upstream, put.model, put.request, wish)
        goal = int(before * _SHARE_AFTER_REFUSAL)
        bounds = Bounds(goal, min(goal, bounds.goal) if bounds is not None else goal)
        if wish.truncation == "auto" and not wish.compacts:
            less = self._truncated(put, asked.history, bounds)
            return less if less is not asked.history else None
        return await self._shorten(asked, bounds, "overflow")

    def learn(self, provider: Provider, call: ModelCall, usage: Usage | None) -> None:
        """Take in what a call was counted as."""
        if usage is not None:
            self.model_limits.learn(provider.name, call, usage.input_tokens)

    # ── how much there may be ───────────────────────────────────────────────────────────────

    def _scale(self, put: SizedCall) -> Scale:
        return self.model_limits.of(put.upstream, put.model).scale

    def _tokens(self, put: SizedCall, history: Sequence[StoredItem]) -> int:
        scale = self._scale(put)
        fixed = field_tokens(put.request.fields, scale)
        return fixed + sum(scale.item(item.body) for item in history)

    def window(self, upstream: str, model: str) -> int | None:
        """Return the window of a model: as configured, or less where its server has refused it."""
        told, learned = self._windows(model), self.model_limits.of(upstream, model).window
        if told is None or learned is None:
            return learned if told is None else told
        return min(told, learned)

    def _bounds(
        self, upstream: str, model: str, request: TurnRequest, wish: ContextOptions
    ) -> Bounds | None:
        """Return the bounds of a request; None where nothing is known and nothing was wished."""
        settings = self.settings
        if settings.mode == "off" and wish.truncation != "auto":
            return None
        found: list[int] = []
        window = self.window(upstream, model)
        if window is not None:
            wanted = wanted_output(request.fields, request.chat_fields)
            reserve = min(wanted or settings.reserve_tokens, window // 2)
            found.append(int((window - reserve) * settings.threshold))
        if wish.compact_threshold is not None:
            found.append(wish.compact_threshold)
        if not found:
            return None
        most = min(found)
        return Bounds(most, int(most * settings.target / settings.threshold))

    def _room(self, put: SizedCall, tokens: int) -> Room:
        scale = self._scale(put)
        left = max(tokens - field_tokens(put.request.fields, scale), LEAST_ROOM)
        return Room(
            tokens=left,
            scale=scale,
            turn_number=put.turn_number,
            summary_tokens=min(self.settings.summary_tokens, left // 4),
            elides_first=self.settings.mode == "elide",
        )

    # ── leaving out ─────────────────────────────────────────────────────────────────────────

    def _truncated(
        self, put: SizedCall, history: Sequence[StoredItem], bounds: Bounds
    ) -> Sequence[StoredItem]:
        """Return the history without its oldest part, for this request alone."""
        made = plan(history, replace(self._room(put, bounds.most), summary_tokens=0))
        return history if made is None else truncated(history, made)

    async def _shorten(
        self, asked: FitRequest, bounds: Bounds, reason: CompactionReason
    ) -> Sequence[StoredItem] | None:
        """Compact until the request is within its bounds, or nothing more can be left out."""
        if self.settings.mode == "off":
            return None
        history: Sequence[StoredItem] | None = None
        put = _put(asked)
        room = self._room(put, bounds.goal)
        for is_last in (False, True):
            made = plan(asked.history, replace(room, elides_first=room.elides_first or is_last))
            try:
                if made is None or not await self._record(asked, made, room, reason):
                    break
            except SessionMoved:
                log.info("compaction.outdated", session_id=asked.run.session.id)
            history = await asked.run.items()
            asked = replace(asked, history=history)
            if self._tokens(put, history) <= bounds.most:
                break
        return history

    async def _record(
        self, asked: FitRequest, made: Plan, room: Room, reason: CompactionReason
    ) -> bool:
        model, prompt = self.settings.model or asked.model, self.settings.prompt
        summary = None
        if made.to_seq and self.settings.mode == "model":
            summary = await self._summarise(made, room, model, prompt, asked.run)
        name = self._gateway.ids.new("cmp")
        compaction = _compaction(name, made, room, reason, summary)
        if made.to_seq and compaction is None:
            return False
        record = await self._write(asked.run, made, name, reason, compaction)
        if compaction is not None and read_context_options(asked.request.fields).compacts:
            text = told_alone(asked.history, made.keeps, compaction.text)
            asked.run.preface = (compaction_item(name, text, record),)
        return True

    async def _summarise(
        self, made: Plan, room: Room, model: str, prompt: str, run: ActiveRun | None = None
    ) -> Summary | None:
        """Return a model's summary; that there is none is a fact of the run, if there is one."""
        window = self._windows(model)
        reserve = 2 * room.summary_tokens
        readable = max(window - reserve, window // 2) if window else made.tokens_before // 2
        found = await self._summariser.summarise(
            made, model=model, prompt=prompt, room=readable, most=room.summary_tokens,
            scale=room.scale,
        )  # fmt: skip
        if isinstance(found, Summary):
            return found
        log.warning("summary.failed", model=model, code=found.code)
        self._gateway.meter.healed(found.failure_class)
        if run is not None:
            await run.record_heal(RecordHeal(fence=run.fence, heal=found.heal))
        return None

    async def _write(
        self, run: ActiveRun, made: Plan, name: str, reason: CompactionReason,
        compaction: Compaction | None,
    ) -> Name:  # fmt: skip
        """Record a plan, and return the record of its summary."""
        elision = None
        if made.cuts:
            elision = Elision(
                id=name, reason=reason, cuts=made.cuts, tokens_before=made.tokens_before,
                tokens_after=made.tokens_after,
            )  # fmt: skip
        session = await run.compact(
            Compact(fence=run.fence, to_seq=made.to_seq, compaction=compaction, elision=elision)
        )
        mode = compaction.mode if compaction is not None else "elide"
        log.info("session.compacted", session_id=run.session.id, reason=reason, mode=mode)
        self._gateway.meter.compacted(mode, reason)
        return session.id, session.record_no - bool(made.cuts)

    # ── where nothing is kept ───────────────────────────────────────────────────────────────

    async def pass_on(
        self, request: TurnRequest, provider: Provider, items: Sequence[NewItem]
    ) -> FittedInput:
        """Return a request of which nothing is kept as short as it asked to be."""
        wish = read_context_options(request.fields)
        if not wish.compacts and wish.truncation != "auto":
            return FittedInput([expand(item.body) for item in items if item.kind not in NOT_SHOWN])
        history = as_stored(items)
        put = SizedCall(
            provider.name, request.model, request, history[-1].turn_number if history else 1
        )
        bounds = self._bounds(put.upstream, put.model, put.request, wish)
        if bounds is None or self._tokens(put, history) <= bounds.most:
            return FittedInput([item.body for item in history])
        if not wish.compacts:
            return FittedInput([item.body for item in self._truncated(put, history, bounds)])
        room = self._room(put, bounds.goal)
        made = plan(history, room)
        if made is None or not made.to_seq:
            return FittedInput([item.body for item in history])
        summary = None
        if self.settings.mode == "model":
            model = self.settings.model or request.model
            summary = await self._summarise(made, room, model, self.settings.prompt)
        name = self._gateway.ids.new("cmp")
        compaction = _compaction(name, made, room, "threshold", summary)
        if compaction is None:
            return FittedInput([item.body for item in history])
        item = compaction_item(name, told_alone(history, made.keeps, compaction.text))
        shown = [expand(item), *(one.body for one in truncated(history, made, keeps=False))]
        return FittedInput(shown, (item,))

    # ── on wish ─────────────────────────────────────────────────────────────────────────────

    async def compact(
        self,
        run: ActiveRun,
        *,
        model: str | None,
        reason: CompactionReason = "asked",
        prompt: str | None = None,
    ) -> CompactionResult:
        """Have one summary stand for all that was said so far, if that is less."""
        for _ in range(OUTDATED_TRIES):
            try:
                return await self._compact(run, model, reason, prompt)
            except SessionMoved:
                log.info("compaction.outdated", session_id=run.session.id)
        return await self._compact(run, model, reason, prompt)

    async def _compact(
        self, run: ActiveRun, model: str | None, reason: CompactionReason, prompt: str | None
    ) -> CompactionResult:
        history = await run.items()
        room = self._whole_room(history, run.turn.number)
        made = plan(history, room)
        name = self._gateway.ids.new("cmp")
        summary, compaction = None, None
        if made is not None:
            asked = self.settings.model or model
            if self.settings.mode != "elide" and asked is not None:
                told = prompt or self.settings.prompt
                summary = await self._summarise(made, room, asked, told, run)
            compaction = _compaction(name, made, room, reason, summary)
        usage = summary.usage if summary is not None else None
        if made is None or compaction is None:
            text = transcript(history, WHOLE_BYTES)
            item = compaction_item(name, text, (run.session.id, 0))
            return CompactionResult(item, usage, is_recorded=False)
        # The run that was made for this counts what it cost.
        compaction = replace(compaction, usage=None)
        record = await self._write(run, made, name, reason, compaction)
        text = told_alone(history, made.keeps, compaction.text)
        return CompactionResult(compaction_item(name, text, record), usage)

    async def digest(
        self, items: Sequence[StoredItem], *, model: str, prompt: str | None, most_bytes: int
    ) -> tuple[str | None, Usage | None]:
        """Return a summary of items that are kept nowhere, and what it cost.

        None where no summary is short enough to be carried in so many bytes: then nobody is asked.
        """
        told = standing_words(items)
        left = carriable(most_bytes) - len(told.encode())
        if left < LEAST_DIGEST:
            return None, None
        room = self._whole_room(items, -1)
        everything = Plan(
            to_seq=len(items), replaced=tuple(items),
            tokens_before=sum(room.scale.item(item.body) for item in items),
        )  # fmt: skip
        summary = None
        if self.settings.mode == "model":
            name = self.settings.model or model
            summary = await self._summarise(everything, room, name, prompt or self.settings.prompt)
        # Where no model sums it up, the beginning and the end of what was said stand for it.
        size = min(int(self.settings.summary_tokens * room.scale.bytes_per_token), left)
        text = clip(summary.text, left) if summary is not None else transcript(items, size)
        return f"{told}\n\n{text}" if told else text, summary.usage if summary else None

    def _whole_room(self, items: Sequence[StoredItem], turn_number: int) -> Room:
        scale = Scale()
        used = sum(scale.item(item.body) for item in items)
        return Room(
            tokens=max(used, LEAST_ROOM),
            scale=scale,
            turn_number=turn_number,
            summary_tokens=min(self.settings.summary_tokens, max(used // 3, 1)),
            is_whole=True,
        )


def _compaction(
    name: str, made: Plan, room: Room, reason: CompactionReason, summary: Summary | None
) -> Compaction | None:
    """Return what stands for the range, if a range is replaced and that is less."""
    if not made.to_seq:
        return None
    size = int(room.summary_tokens * room.scale.bytes_per_token)
    # Where everything goes, its beginning and its end are told, or nothing would be known of it.
    texts = [transcript(made.replaced, size) if room.is_whole else left_out_note(made, size)]
    if summary is not None:
        texts.insert(0, summary.text)
    for text in texts:
        told = quoted(made, text, size // 2)
        size_shown = room.scale.item(message("user", SUMMARY_OPENING + told).body)
        extra = size_shown - room.summary_tokens
        after = made.tokens_after + max(extra, 0)
        if after < made.tokens_before:
            is_model = summary is not None and text == summary.text
            return Compaction(
                id=name,
                mode="model" if is_model else "elide",
                reason=reason,
                text=told,
                keeps=made.keeps,
                left_out=len(made.replaced),
                model=summary.model if summary is not None and is_model else None,
                tokens_before=made.tokens_before,
                tokens_after=after,
                usage=summary.usage if summary is not None else None,
            )
    return None


def _put(asked: FitRequest) -> SizedCall:
    return SizedCall(asked.provider.name, asked.model, asked.request, asked.run.turn.number)


def as_stored(items: Iterable[NewItem]) -> list[StoredItem]:
    """Return items that are kept nowhere as a log would have them: a turn for each question."""
    found: list[StoredItem] = []
    turn, was_asked = 1, True
    for seq, item in enumerate(items, 1):
        if item.kind in NOT_SHOWN:
            continue
        shown = read_item(expand(item.body))
        one = StoredItem("", seq, turn, shown.kind, None, shown.call_id, b"", False, shown.body)
        is_asked = role_of(one) == "user"
        turn += is_asked and not was_asked
        was_asked = is_asked
        found.append(replace(one, turn_number=turn))
    return found


def truncated(items: Sequence[StoredItem], made: Plan, *, keeps: bool = True) -> list[StoredItem]:
    """Return items as a plan leaves them, with nothing in the place of what is gone."""
    cuts = dict(made.cuts)
    kept = set(made.keeps) if keeps else set()
    return [
        shortened(item, cuts[item.seq]) if item.seq in cuts else item
        for item in items
        if item.seq > made.to_seq or item.seq in kept
    ]
