"""Reads of schedules, and the operations of the scheduler for operators."""

from typing import Any, Protocol

from holdfast.core.ids import Tenant
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow


class ScheduleReader(Protocol):
    """Reads about schedules."""

    async def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by tenant and name."""
        ...

    async def page(
        self, tenant: Tenant, *, after: str | None, limit: int, is_descending: bool
    ) -> list[ScheduleRow]:
        """Return schedules of a tenant by name, starting after the name `after`."""
        ...

    async def schedule(self, tenant: Tenant, name: str) -> ScheduleRow | None:
        """Return one schedule."""
        ...

    async def active(self) -> tuple[float, list[ScheduleRow]]:
        """Return the store's time, and the schedules that are due or have a run."""
        ...

    async def runs(self, schedule_id: str, limit: int) -> list[ScheduleRunRow]:
        """Return the runs of a schedule, newest first."""
        ...


class ScheduleDirectory(Protocol):
    """The schedules of a gateway, as operators use them over HTTP."""

    async def save(self, tenant: Tenant, values: dict[str, Any]) -> ScheduleRow:
        """Create or change a schedule."""
        ...

    async def run_now(self, tenant: Tenant, name: str) -> ScheduleRow:
        """Make a schedule due now."""
        ...

    async def pause(self, tenant: Tenant, name: str, *, is_paused: bool) -> ScheduleRow:
        """Pause or resume a schedule."""
        ...

    async def delete(self, tenant: Tenant, name: str) -> bool:
        """Delete a schedule."""
        ...
