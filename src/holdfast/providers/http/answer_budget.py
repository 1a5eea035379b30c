"""A limit on the bytes of whole upstream answers that the process holds at a time.

Stream events are passed on as they arrive and are not counted.
"""

from holdfast.providers.errors import broken

MAX_HELD_BYTES = 64 * 1024 * 1024
STEP_BYTES = 1024 * 1024
"""Answers are counted in steps of this size; the first step is free."""


class AnswerBudget:
    """Counts the bytes of large answers; an answer that exceeds the limit fails."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self._free = limit
        self._limit = limit

    @property
    def held_bytes(self) -> int:
        """How many bytes are counted."""
        return self._limit - self._free

    def take(self, size: int) -> None:
        """Reserve bytes; raise if the limit is exceeded."""
        if size > self._free:
            raise broken(
                f"the upstreams' answers exceed {self._limit} bytes at a time",
                "upstream_answers_too_large",
                status=503,
            )
        self._free -= size

    def give_back(self, size: int) -> None:
        """Release bytes."""
        self._free += size


class HeldAnswer:
    """The reserved bytes of one answer."""

    __slots__ = ("_budget", "_counted", "_next")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._counted = 0
        self._next = STEP_BYTES

    def grow(self, total: int) -> None:
        """Reserve bytes for an answer that has `total` bytes so far."""
        while total > self._next:
            self._budget.take(STEP_BYTES)
            self._counted += STEP_BYTES
            self._next += STEP_BYTES

    def close(self) -> None:
        """Release the bytes of the answer."""
        self._budget.give_back(self._counted)
        self._counted = 0


ANSWERS = AnswerBudget()
"""The budget of the process; all upstreams share it."""
