"""A bound on the bytes of whole upstream answers that the process receives at a time.

Events of streams are passed on as they arrive and are not counted.
"""

from holdfast.providers.errors import broken

MAX_HELD_BYTES = 64 * 1024 * 1024
STEP_BYTES = 1024 * 1024
"""The first bytes of an answer are not counted; beyond them it is counted in such steps."""


class AnswerBudget:
    """Counts the bytes of large answers; the answer that exceeds the bound fails."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self._free = limit
        self._limit = limit

    @property
    def held_bytes(self) -> int:
        """How many bytes are counted."""
        return self._limit - self._free

    def take(self, size: int) -> None:
        """Count bytes, or raise the failure of their answer."""
        if size > self._free:
            raise broken(
                f"the upstreams' answers exceed {self._limit} bytes at a time",
                "upstream_answers_too_large",
                status=503,
            )
        self._free -= size

    def give_back(self, size: int) -> None:
        """Count bytes no more."""
        self._free += size


class HeldAnswer:
    """The part of one answer that is counted."""

    __slots__ = ("_budget", "_counted", "_next")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._counted = 0
        self._next = STEP_BYTES

    def grow(self, total: int) -> None:
        """Count an answer that has so many bytes by now."""
        while total > self._next:
            self._budget.take(STEP_BYTES)
            self._counted += STEP_BYTES
            self._next += STEP_BYTES

    def close(self) -> None:
        """Count the answer no more."""
        self._budget.give_back(self._counted)
        self._counted = 0


ANSWERS = AnswerBudget()
"""The budget of the process: all upstreams share its memory."""
