"""Count what is read from a store."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.sql.plan import Plan
from holdfast.stores.sql.store import SqlStore


class CountedStore:
    """Counts what is read from a store, and lets reads fail on request."""

    def __init__(self, store: SqlStore) -> None:
        self._query = store.query
        self.statements = self.rows = 0
        self.largest: dict[str, int] = {}
        """The most rows that a statement returned, by its name."""
        self.failing = ""
        store.query = self.query  # type: ignore[method-assign]

    async def query(self, query: Callable[[float], Plan[Any]]) -> Any:
        """Run a read and count it."""
        return await self._query(lambda now: self._counted(query(now)))

    def _counted(self, plan: Plan[Any]) -> Generator[Any, Any, Any]:
        rows: Sequence[Any] | None = None
        while True:
            try:
                ask = plan.send(rows)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            if ask[0].name == self.failing:
                raise StoreUnavailable("canceling statement due to statement timeout")
            rows = yield ask
            self.statements += 1
            self.rows += len(rows)
            name = ask[0].name
            self.largest[name] = max(self.largest.get(name, 0), len(rows))
