"""Summaries by a model: asked once, bounded in what it reads and writes, never in a turn's way."""

import time
from collections.abc import Callable

import msgspec

from holdfast.core.budget import Plan
from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.core.estimate import Scale
from holdfast.core.items import item_value, message
from holdfast.core.session import Usage
from holdfast.core.summaries import clip, content_text, transcript
from holdfast.engine.log import log
from holdfast.ports.meter import Meter
from holdfast.ports.provider import Answer, ModelCall, Provider

_SHARE_OF_WINDOW = 0.8
"""How much of its window a summary's model is given to read: estimates may be wrong."""


class Summary(msgspec.Struct, frozen=True):
    """What a model wrote, and what that cost."""

    text: str
    model: str
    usage: Usage | None


class Summariser:
    """Asks a model to sum up what a plan leaves out."""

    def __init__(self, route: Callable[[str], Provider], meter: Meter) -> None:
        self._route = route
        self._meter = meter

    async def summarise(
        self, plan: Plan, *, model: str, prompt: str, room: int, most: int, scale: Scale
    ) -> Summary | None:
        """Return a summary of at most `most` tokens, or None: a model that fails fails no turn.

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
            log.warning("summary.failed", model=model, code=error.code)
            return None
        finally:
            self._meter.upstream_answered(upstream, outcome, time.monotonic() - began)
        if answer.status != "completed":
            log.warning("summary.failed", model=model, code=answer.status)
            return None
        text = clip(_text(answer), int(most * scale.bytes_per_token)).strip()
        return Summary(text, model, answer.usage) if text else None


def _text(answer: Answer) -> str:
    """Return what was said; a refusal sums nothing up."""
    values = map(item_value, answer.items)
    contents = [value.get("content") for value in values if value.get("type") == "message"]
    return "\n".join(content_text(_unrefused(content)) for content in contents)


def _unrefused(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [p for p in content if not (isinstance(p, dict) and p.get("type") == "refusal")]
