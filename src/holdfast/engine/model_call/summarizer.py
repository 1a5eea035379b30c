"""Summaries written by a model: one bounded call, whose failure does not fail the turn."""

import time
from collections.abc import Callable

import msgspec

from holdfast.core.compaction.budget import Plan
from holdfast.core.compaction.summary_prompts import clip, content_text, transcript
from holdfast.core.compaction.token_estimate import Scale
from holdfast.core.errors import FailureClass, HoldfastError, ProviderFailure
from holdfast.core.healing.policy import MAX_MESSAGE, Heal
from holdfast.core.model.items import item_value, message
from holdfast.core.model.session import Usage
from holdfast.engine.model_call.long_histories import read_all
from holdfast.ports.meter import Meter
from holdfast.ports.provider import Answer, ModelCall, Provider
from holdfast.ports.request_context import note_model

_SHARE_OF_WINDOW = 0.8
"""The share of its window that the summarizing model reads, because estimates may be wrong."""


class Summary(msgspec.Struct, frozen=True):
    """A summary that a model wrote, and what it cost."""

    text: str
    model: str
    usage: Usage | None
    upstream: str = "unknown"


class SummaryFailure(msgspec.Struct, frozen=True):
    """Why a model wrote no summary."""

    model: str
    upstream: str
    failure_class: FailureClass = "terminal"
    code: str | None = None
    status: int | None = None
    message: str = ""
    usage: Usage | None = None
    """The tokens of an answer that is no summary."""

    @property
    def heal(self) -> Heal:
        """The heal that is recorded with the run: the summary is made by rule instead."""
        return Heal(
            failure_class=self.failure_class,
            action="summed_up_by_rule",
            code=self.code,
            upstream=self.upstream,
            model=self.model,
            status=self.status,
            message=self.message[:MAX_MESSAGE],
        )


class Summarizer:
    """Asks a model to summarize what a plan leaves out."""

    def __init__(self, route: Callable[[str], Provider], meter: Meter) -> None:
        self._route = route
        self._meter = meter

    async def summarize(
        self, plan: Plan, *, model: str, prompt: str, input_tokens: int, max_tokens: int,
        scale: Scale,
    ) -> Summary | SummaryFailure:  # fmt: skip
        """Return a summary of at most `max_tokens`, from at most `input_tokens` of transcript."""
        size = int(max(input_tokens * _SHARE_OF_WINDOW, max_tokens) * scale.bytes_per_token)
        told = await read_all(plan.replaced, lambda items: transcript(items, size))
        text = message("user", told)
        call = ModelCall(
            model=model,
            items=[text.body],
            fields={"instructions": msgspec.Raw(msgspec.json.encode(prompt))},
            keeps_state=False,
        )
        began, outcome, upstream = time.monotonic(), "left", "unknown"
        try:
            provider = self._route(model)
            upstream = provider.name
            note_model(model, upstream)
            answer = await provider.answer(call)
            outcome = answer.status
        except HoldfastError as error:
            outcome = error.failure_class if isinstance(error, ProviderFailure) else error.code
            return _failed(model, upstream, error)
        finally:
            self._meter.upstream_answered(upstream, outcome, time.monotonic() - began)
        if answer.status != "completed":
            return _empty(model, upstream, answer.incomplete_reason or answer.status, answer.usage)
        summary = clip(_text(answer), int(max_tokens * scale.bytes_per_token)).strip()
        if not summary:
            return _empty(model, upstream, "empty", answer.usage)
        return Summary(summary, model, answer.usage, upstream)


def _failed(model: str, upstream: str, error: HoldfastError) -> SummaryFailure:
    if not isinstance(error, ProviderFailure):
        return SummaryFailure(model, upstream, code=error.code, message=error.message)
    return SummaryFailure(
        model,
        upstream,
        error.failure_class,
        error.provider_code or error.code,
        error.status,
        error.message,
    )


def _empty(model: str, upstream: str, code: str, usage: Usage | None) -> SummaryFailure:
    message = "the answer is no summary"
    return SummaryFailure(model, upstream, code=code, message=message, usage=usage)


def _text(answer: Answer) -> str:
    """Return the text of an answer without refusals."""
    values = map(item_value, answer.items)
    contents = [value.get("content") for value in values if value.get("type") == "message"]
    return "\n".join(content_text(_without_refusals(content)) for content in contents)


def _without_refusals(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [p for p in content if not (isinstance(p, dict) and p.get("type") == "refusal")]
