"""Schedules over HTTP."""

from typing import Any

import msgspec

from holdfast.core.decisions.schedules import ScheduleNotFound
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.admin.channels import require_admin
from holdfast.http.request.body import check_readable, read_fields, read_no_fields
from holdfast.http.request.pagination import UnknownCursor, page, read_page
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.ports.schedules import ScheduleDirectory

SHOWN_RUNS = 20


class SchedulesApi:
    """Everything under /v1/schedules."""

    def __init__(self, gateway: Gateway, schedules: ScheduleDirectory) -> None:
        self._gateway = gateway
        self._schedules = schedules

    async def list_page(self, request: Request) -> AnyReply:
        """Return a page of the schedules of the caller's tenant, by name."""
        require_admin(request)
        reader, page_request = self._gateway.store.schedules, read_page(request, order="asc")
        after = page_request.after
        if after is not None and await reader.schedule(request.tenant, after) is None:
            raise UnknownCursor(f"after: there is no schedule {after!r}")
        rows = await reader.page(
            request.tenant,
            after=after,
            limit=page_request.limit + 1,
            is_descending=page_request.order == "desc",
        )
        values = [schedule_value(row) for row in rows]
        return json_reply(page(values, [row.name for row in rows], page_request.limit))

    async def save(self, request: Request) -> AnyReply:
        """Create or change a schedule."""
        require_admin(request)
        fields = await read_fields(request)
        check_readable(fields)
        values = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        return json_reply(schedule_value(await self._schedules.save(request.tenant, values)))

    async def get(self, request: Request) -> AnyReply:
        """Return a schedule with its last runs."""
        require_admin(request)
        name = _name(request)
        reader = self._gateway.store.schedules
        row = await reader.schedule(request.tenant, name)
        if row is None:
            raise ScheduleNotFound(f"no schedule {name}")
        runs = await reader.runs(row.id, SHOWN_RUNS)
        return json_reply({**schedule_value(row), "runs": [run_value(run) for run in runs]})

    async def run(self, request: Request) -> AnyReply:
        """Make a schedule due now."""
        require_admin(request)
        await read_no_fields(request)
        row = await self._schedules.run_now(request.tenant, _name(request))
        return json_reply(schedule_value(row))

    async def pause(self, request: Request) -> AnyReply:
        """Pause a schedule."""
        return await self._pause(request, is_paused=True)

    async def resume(self, request: Request) -> AnyReply:
        """Resume a schedule."""
        return await self._pause(request, is_paused=False)

    async def _pause(self, request: Request, *, is_paused: bool) -> AnyReply:
        require_admin(request)
        await read_no_fields(request)
        name = _name(request)
        row = await self._schedules.pause(request.tenant, name, is_paused=is_paused)
        return json_reply(schedule_value(row))

    async def delete(self, request: Request) -> AnyReply:
        """Forget a schedule."""
        require_admin(request)
        await read_no_fields(request)
        name = _name(request)
        if not await self._schedules.delete(request.tenant, name):
            raise ScheduleNotFound(f"no schedule {name}")
        return json_reply({"object": "schedule.deleted", "name": name, "deleted": True})


def _name(request: Request) -> str:
    name = request.params["name"]
    if "\0" in name:  # PostgreSQL rejects NUL even in a query.
        raise ScheduleNotFound("no schedule has such a name")
    return name


def schedule_value(row: ScheduleRow) -> dict[str, Any]:
    """Return a schedule as the API shows it."""
    value: dict[str, Any] = msgspec.structs.asdict(row)
    spec: dict[str, Any] = msgspec.json.decode(value.pop("spec"))
    return {"object": "schedule", **value, **spec}


def run_value(run: ScheduleRunRow) -> dict[str, Any]:
    """Return a run as the API shows it."""
    return {"object": "schedule.run", **msgspec.structs.asdict(run)}
