"""Log tools that cannot be offered: once when it starts, not at every turn."""

from collections.abc import Collection

from holdfast.engine.logging import log

MAX_KNOWN = 4096
Place = tuple[str, ...]
"""Where tools are disabled: a tenant, or a server of a tenant."""


class DisabledTools:
    """The tools that are currently disabled and were logged."""

    def __init__(self) -> None:
        self._known: set[tuple[Place, str]] = set()

    def note(
        self, place: Place, disabled: Collection[str], offered: Collection[str], reason: str
    ) -> None:
        """Log newly disabled tools; remove those that are offered again."""
        if self._known:
            self._known.difference_update((place, name) for name in offered)
        for name in disabled:
            if (place, name) in self._known:
                continue
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known.add((place, name))
            log.warning("tool.disabled", tool=name[:128], reason=reason)
