"""A fixed loop whose CPU time shows how fast the processor currently is.

On a shared machine the same work takes more CPU time while a neighbour uses the caches or the other
hyper-thread. A spin loop before and after each measurement slows down in the same way, so the ratio
cancels most of it.
"""

import time

REFERENCE_SECONDS = 0.0233
"""CPU time of the loop on the reference machine when it is idle; scaled times refer to it."""
_ROUNDS = 100
_WORDS = {str(number): number for number in range(2000)}


def spin_seconds() -> float:
    """Return the CPU time of the loop now."""
    began = time.thread_time()
    total = 0
    for _ in range(_ROUNDS):
        for number in range(2000):
            total += _WORDS[str(number)]
        pairs = [(number, str(number)) for number in range(500)]
        total += len(pairs)
    return time.thread_time() - began


class Spin:
    """The factor for CPU times measured between its creation and `factor`."""

    def __init__(self) -> None:
        self._before = min(spin_seconds() for _ in range(2))

    def factor(self) -> float:
        """Return the factor that converts a CPU time to the reference machine's."""
        after = min(spin_seconds() for _ in range(2))
        return REFERENCE_SECONDS / ((self._before + after) / 2)
