"""What this process has learned about models: bytes to a token, and where their windows end.

A cache, bounded in count: after a restart it is learned again.
"""

import re
from collections import OrderedDict

import msgspec

from holdfast.core.compaction.token_estimate import DEFAULT_SCALE, Scale, teaches, text_bytes
from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import ModelCall

MOST_MODELS = 512
LEAST_WINDOW = 512
LONG_CALL, SELDOM = 64, 32
"""A longer call is measured only every so often: it would cost more than it tells."""
_STATED = re.compile(
    r"(?:maximum context length is|context (?:window|length) (?:of|is)|>)\s*(\d{3,9})(?!\d)",
    re.IGNORECASE,
)


class LearnedLimits(msgspec.Struct, frozen=True):
    """What is known of one model at one upstream."""

    scale: Scale = DEFAULT_SCALE
    window: int | None = None
    """The window that it stated, or what was refused as too long."""


_NOTHING = LearnedLimits()


class ModelLimits:
    """Learns from what providers report and refuse."""

    def __init__(self, most: int = MOST_MODELS) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str], LearnedLimits] = OrderedDict()

    def of(self, upstream: str, model: str) -> LearnedLimits:
        """Return what is known of a model."""
        return self._known.get((upstream, model), _NOTHING)

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, upstream: str, call: ModelCall, input_tokens: int) -> None:
        """Take in how many tokens a call was counted as."""
        count = len(call.items)
        if (count > LONG_CALL and count % SELDOM) or not teaches(count, input_tokens):
            return
        known = self.of(upstream, call.model)
        size = text_bytes(call.items, call.fields)
        scale = known.scale.learned(size, count, input_tokens)
        if scale != known.scale:
            self._keep(upstream, call.model, msgspec.structs.replace(known, scale=scale))

    def refused(self, upstream: str, model: str, failure: ProviderFailure, tokens: int) -> None:
        """Take in that a request was too long: by its estimate, if the server does not say how."""
        known = self.of(upstream, model)
        stated = _STATED.search(failure.message.replace(",", ""))
        window = int(stated[1]) if stated is not None else tokens
        if window >= LEAST_WINDOW and (known.window is None or window < known.window):
            self._keep(upstream, model, msgspec.structs.replace(known, window=window))

    def _keep(self, upstream: str, model: str, known: LearnedLimits) -> None:
        self._known[upstream, model] = known
        self._known.move_to_end((upstream, model))
        while len(self._known) > self._most:
            self._known.popitem(last=False)
