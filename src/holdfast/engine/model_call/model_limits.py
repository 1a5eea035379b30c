"""What this process has learned about models: bytes per token, and where their windows end.

A cache with a bounded number of entries; it is empty after a restart.
"""

import re

import msgspec

from holdfast.core.compaction.token_estimate import DEFAULT_SCALE, Scale, is_informative, text_bytes
from holdfast.core.errors import ProviderFailure
from holdfast.core.lru import SizedLru
from holdfast.ports.provider import ModelCall

MAX_MODELS = 512
MIN_WINDOW = 512
LONG_CALL, SAMPLED_EVERY = 64, 32
"""Of calls with more than 64 items, only those whose item count is a multiple of 32 are measured,
because that is expensive."""
_STATED = re.compile(
    r"(?:maximum context length is|context (?:window|length) (?:of|is)|>)\s*(\d{3,9})(?!\d)",
    re.IGNORECASE,
)
ModelKey = tuple[str, str]
"""An upstream and one of its models."""


class LearnedLimits(msgspec.Struct, frozen=True):
    """What is known about one model at one upstream."""

    scale: Scale = DEFAULT_SCALE
    window: int | None = None
    """The window that the server stated, or the size that it rejected."""


_UNKNOWN = LearnedLimits()


class ModelLimits:
    """Learns from the token counts and rejections of providers."""

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._known: SizedLru[ModelKey, LearnedLimits] = SizedLru(max_models)

    def of(self, upstream: str, model: str) -> LearnedLimits:
        """Return what is known about a model."""
        return self._known.get((upstream, model)) or _UNKNOWN

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, upstream: str, call: ModelCall, input_tokens: int) -> None:
        """Learn from the number of tokens that a provider counted for a call."""
        count = len(call.items)
        if (count > LONG_CALL and count % SAMPLED_EVERY) or not is_informative(count, input_tokens):
            return
        limits = self.of(upstream, call.model)
        size = text_bytes(call.items, call.fields)
        scale = limits.scale.learned(size, count, input_tokens)
        if scale != limits.scale:
            limits = msgspec.structs.replace(limits, scale=scale)
            self._known.put((upstream, call.model), limits, 1)

    def rejected(self, upstream: str, model: str, failure: ProviderFailure, tokens: int) -> None:
        """Learn a limit from a rejection: the server's stated one, else the estimated size."""
        limits = self.of(upstream, model)
        stated = _STATED.search(failure.message.replace(",", ""))
        window = int(stated[1]) if stated is not None else tokens
        if window >= MIN_WINDOW and (limits.window is None or window < limits.window):
            limits = msgspec.structs.replace(limits, window=window)
            self._known.put((upstream, model), limits, 1)
