"""Sequential ids, so that tests can name them and failures are readable."""

from collections import Counter


class SequentialIds:
    """`turn_000001`, `turn_000002`, …: in order, per prefix.

    `name` separates the ids of two processes: `turn_a000001`.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._counts: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        """Return the next id of a prefix."""
        self._counts[prefix] += 1
        return f"{prefix}_{self._name}{self._counts[prefix]:06d}"
