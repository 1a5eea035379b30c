"""Every statement of the store, and those whose work may grow with it."""

import importlib
import pkgutil
from collections.abc import Iterator

import holdfast.stores
from holdfast.stores.sql.plan import Statement

CHECKS = frozenset({
    "abandoned_turns", "all_entries", "expired_holds", "long_runs", "orphans", "stale_queue",
})  # fmt: skip
"""Statements of `holdfast doctor` about what is going on now, and of copies about everything."""
WHOLE = frozenset({
    "active_schedules", "api_keys", "chats", "dead_updates", "messages", "outbox_counts",
    "pairings", "receivers", "schedules", "stop_requests", "stored_bytes", "workers",
})  # fmt: skip
"""Statements that read everything of their kind, or of a tenant or channel."""
OPEN = frozenset({
    "activity_of_lanes", "claimed_messages", "cut_leases", "declare_dead", "due_messages",
    "erase_late_writes", "erase_partials", "list_running_sessions_down", "list_running_sessions_up",
    "orphaned_sessions", "owned_runs", "owned_turns", "report_lanes",
    "report_workers", "tenant_turns",
})  # fmt: skip
"""Statements about what is going on now: lanes, queues, workers, messages to be sent."""
BACKGROUND = frozenset({
    "forget_deliveries", "forget_idempotency", "forget_journals", "forget_stop_requests",
    "idle_sessions", "prune_outbox",
})  # fmt: skip
"""Statements that remove or find what is too old."""
GROWING = CHECKS | WHOLE | OPEN | BACKGROUND
"""Statements whose work may grow with the store."""


def every_statement() -> dict[str, Statement]:
    """Return the statements of all modules by their names."""
    found: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(holdfast.stores.__path__, "holdfast.stores."):
        for value in vars(importlib.import_module(module.name)).values():
            found.update((one.name, one) for one in _statements_in(value))
    return found


def _statements_in(value: object) -> Iterator[Statement]:
    if isinstance(value, Statement):
        yield value
    elif isinstance(value, tuple | dict):
        several = value.values() if isinstance(value, dict) else value
        yield from (one for one in several if isinstance(one, Statement))
