"""Summaries by a model: asked once, bounded in what it reads and writes, never in a turn's way."""

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
from holdfast.ports.meter import Meter
from holdfast.ports.provider import Answer, ModelCall, Provider

_SHARE_OF_WINDOW = 0.8
"""How much of its window a summary's model is given to read: estimates may be wrong."""


class Summary(msgspec.Struct, frozen=True):
    """What a model wrote, and what that cost."""

    text: str
    model: str
    usage: Usage | None


class NoSummary(msgspec.Struct, frozen=True):
    """A model that was asked for a summary and gave none: who, and how it went."""

    model: str
    upstream: str
    failure_class: FailureClass = "terminal"
    code: str | None = None
    status: int | None = None
    message: str = ""

    @property
    def heal(self) -> Heal:
        """What is kept of it with the run: its part of the log is summed up by rule instead."""
        return Heal(
            failure_class=self.failure_class,
            action="summed_up_by_rule",
            code=self.code,
            upstream=self.upstream,
            model=self.model,
            status=self.status,
            message=self.message[:MAX_MESSAGE],
        )


class Summariser:
    """Asks a model to sum up what a plan leaves out."""

    def __init__(self, route: Callable[[str], Provider], meter: Meter) -> None:
        self._route = route
        self._meter = meter

    async def summarise(
        self, plan: Plan, *, model: str, prompt: str, room: int, most: int, scale: Scale
    ) -> Summary | NoSummary:
        """Return a summary of at most `most` tokens, or why not: a model that fails fails no turn.

        `room` is how many tokens the model may be given.
        """
        size = int(max(room * _SHARE_OF_WINDOW, most) * scale.bytes_per_token)
        said = message("user", transcript(plan.replaced, size))
        call = ModelCall(
            model=model,
            items=[said.body],
            fields={"instructions": msgspec.Raw(msgspec.json.encode(prompt))},
            keeps_state=False,
        )
        began, outcome, upstream = time.monotonic(), "left", "unknown"
        try:
            provider = self._route(model)
            upstream = provider.name
            answer = await provider.answer(call)
            outcome = answer.status
        except HoldfastError as error:
            outcome = error.failure_class if isinstance(error, ProviderFailure) else error.code
            return _failed(model, upstream, error)
        finally:
            self._meter.upstream_answered(upstream, outcome, time.monotonic() - began)
        if answer.status != "completed":
            return _none(model, upstream, answer.incomplete_reason or answer.status)
        text = clip(_text(answer), int(most * scale.bytes_per_token)).strip()
        return Summary(text, model, answer.usage) if text else _none(model, upstream, "empty")


def _failed(model: str, upstream: str, error: HoldfastError) -> NoSummary:
    if not isinstance(error, ProviderFailure):
        return NoSummary(model, upstream, code=error.code, message=error.message)
    return NoSummary(
        model,
        upstream,
        error.failure_class,
        error.provider_code or error.code,
        error.status,
        error.message,
    )


def _none(model: str, upstream: str, code: str) -> NoSummary:
    return NoSummary(model, upstream, code=code, message="the answer is no summary")


def _text(answer: Answer) -> str:
    """Return what was said; a refusal sums nothing up."""
    values = map(item_value, answer.items)
    contents = [value.get("content") for value in values if value.get("type") == "message"]
    return "\n".join(content_text(_unrefused(content)) for content in contents)


def _unrefused(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [p for p in content if not (isinstance(p, dict) and p.get("type") == "refusal")]
