"""The scheduler: claims due times, follows runs, and delivers their answers."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.decisions.schedules import ScheduleBusy, ScheduleChanged, ScheduleNotFound
from holdfast.core.decisions.worker_losses import TURN_ABANDONED
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    LaneFull,
    ModelNotFound,
    NotFound,
    SessionDeleted,
    StorageFull,
    StoreUnavailable,
    TenantFull,
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId
from holdfast.core.model.delivery import Delivery, OutboxMessage, gateway_key
from holdfast.core.model.items import message
from holdfast.core.model.request import AnswerName, TurnRequest, response_id, write_request
from holdfast.core.model.schedule import (
    ISOLATED,
    RESERVED_PREFIX,
    DeliverTo,
    ScheduleClaim,
    ScheduleRow,
    ScheduleSpec,
    read_spec,
    write_spec,
)
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import (
    Accept,
    Delete,
    DeleteSchedule,
    ForgetRun,
    PauseSchedule,
    SaveSchedule,
    SettleRun,
    SkipRun,
)
from holdfast.core.transaction.outgoing import FILES_FOLLOW, output_files, output_text
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService
from holdfast.ports.request_context import begin_context
from holdfast.schedules.settings import ScheduleSettings
from holdfast.schedules.times import (
    LATE_SECONDS,
    MISSED_SECONDS,
    check_spec,
    latest_missed,
    next_time,
    period_seconds,
    time_name,
)

IDLE_SECONDS = 0.5
MAX_RUNNING = 4
FindChat = Callable[[DeliverTo], Awaitable[tuple[Tenant, Key, DeliverTo]]]
"""Returns the tenant, session key and usual id of a chat; raises if its channel is unknown."""
OnPaused = Callable[[Tenant, str, str], tuple[OutboxMessage, ...]]
"""Returns the messages to send if a tenant's schedule is paused for a reason."""

ToolNames = Callable[[Tenant], Collection[str]]
"""Returns the tools that a tenant's schedules may use."""
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")


class Scheduler:
    """Runs the schedules of a store; every replica has one, and each due time gets one run."""

    def __init__(
        self,
        gateway: Gateway,
        turns: TurnService,
        configured: Sequence[ScheduleSettings] = (),
        *,
        find_chat: FindChat | None = None,
        on_paused: OnPaused = lambda *_: (),
        tool_names: ToolNames = lambda _: (),
    ) -> None:
        self._gateway = gateway
        self._turns = turns
        self._configured = configured
        self._find_chat = find_chat
        self._on_paused = on_paused
        self._tool_names = tool_names
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._must_sync = False
        """Whether the schedules of the configuration could not be stored yet."""
        self._held_back: dict[str, float] = {}
        """Due times that wait until fewer schedules run, by schedule: they were not missed."""

    async def start(self) -> None:
        """Store the schedules of the configuration, then start running due ones.

        While the store cannot be written, as on a full disk, neither can be done.
        """
        try:
            await self._sync()
        except StoreUnavailable as exc:
            log.warning("schedules.not_stored", reason=exc.message)
            self._must_sync = True
        self._task = asyncio.create_task(self._run(), name="holdfast-schedules")

    async def stop(self) -> None:
        """Claim no more due times; runs in progress are turns like any other."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sync(self) -> None:
        names = {(schedule.tenant, schedule.name) for schedule in self._configured}
        for row in await self._gateway.store.schedules.schedules():
            if row.is_from_file and (row.tenant, row.name) not in names:
                await self._gateway.submit(DeleteSchedule(tenant=row.tenant, name=row.name))
        for settings in self._configured:
            await self._save(Tenant(settings.tenant), settings.spec(), is_from_file=True)
        self._must_sync = False

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                if self._must_sync:
                    await self._sync()
                await self.run_due()
            except HoldfastError as exc:
                log.failed("schedules.not_run", exc)
            except Exception:  # noqa: BLE001 - the top of a task that must go on
                log.exception("schedules.failed")
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def run_due(self) -> None:
        """Settle runs that ended, then claim what is due."""
        now, rows = await self._gateway.store.schedules.active()
        running = 0
        for row in rows:
            if row.running_turn is not None:
                running += await self._attempt(row, self._follow(row, now))
        held_back: dict[str, float] = {}
        for row in rows:
            due = row.next_run_at
            if due is None or due > now or row.is_paused:
                continue
            if row.running_turn is not None:
                await self._attempt(row, self._skip_if_running(row, now))
            elif running < MAX_RUNNING:
                running += await self._attempt(row, self._claim(row, now))
            elif now - due <= LATE_SECONDS or self._is_held_back(row):
                held_back[row.id] = due
        self._held_back = held_back

    def _is_held_back(self, row: ScheduleRow) -> bool:
        return self._held_back.get(row.id) == row.next_run_at

    async def _attempt(self, row: ScheduleRow, step: Awaitable[bool]) -> bool:
        """Run a step of one schedule; its failure must not stop the other schedules."""
        try:
            return await step
        except StoreUnavailable:
            raise
        except HoldfastError as exc:
            log.failed("schedules.not_run", exc, schedule=row.name)
        except Exception:  # noqa: BLE001 - one schedule must not stop the others
            log.exception("schedules.failed", schedule=row.name)
        return False

    # ── due times ───────────────────────────────────────────────────────────────────────────

    async def _skip_if_running(self, row: ScheduleRow, now: float) -> bool:
        """Skip a due time if the previous run has not ended."""
        is_running = await self._is_running(row)
        if is_running:
            await self._skip(row, now, "skipped: the run before was still going")
        return is_running

    async def _is_running(self, row: ScheduleRow) -> bool:
        if row.running_turn is None:
            return False
        view = await self._gateway.read.turn(row.tenant, row.running_turn)
        return view is not None and view.turn.is_open

    async def _skip(
        self, row: ScheduleRow, now: float, reason: str, *, is_failure: bool = False
    ) -> None:
        following = next_time(read_spec(row.spec), now, created_at=row.created_at)
        command = SkipRun(
            id=row.id, expected_at=row.next_run_at, next_run_at=following, reason=reason,
            is_failure=is_failure, if_paused=self._on_paused(row.tenant, row.name, reason),
        )  # fmt: skip
        await self._gateway.submit(command)

    async def _claim(self, row: ScheduleRow, now: float) -> bool:
        """Claim a due time with the turn that it starts; return whether this process got it."""
        assert row.next_run_at is not None
        spec = read_spec(row.spec)
        due = row.next_run_at
        if now - due > LATE_SECONDS:
            if spec.missed == "skip" and not self._is_held_back(row):
                await self._skip(row, now, "skipped: missed while nothing ran")
                return False
            due = latest_missed(spec, due, now, created_at=row.created_at)
            if now - due > MISSED_SECONDS:
                await self._skip(row, now, "skipped: missed for more than a day")
                return False
        claim = ScheduleClaim(
            row.id, due, row.next_run_at, next_time(spec, max(due, now), created_at=row.created_at)
        )
        begin_context(self._gateway.ids.new("req"), row.tenant)
        try:
            request = await self._request(spec)
            accept = await self._accept(
                row.tenant, self._key(spec, due), request,
                once=gateway_key("schedule", row.id, time_name(due)),
            )  # fmt: skip
            accept = msgspec.structs.replace(
                accept, items=(message("user", spec.prompt),), schedule=claim
            )
            ticket = await self._turns.accept(accept, request, is_live=False)
        except ScheduleChanged:
            return False
        except StoreUnavailable:
            raise
        except HoldfastError as exc:
            await self._skip(row, now, f"not accepted: {exc.message}", is_failure=True)
            return False
        if ticket.task is None:
            # A repeat of an earlier run: the accept claimed nothing. After the clock was set back,
            # the schedule would otherwise stay due at this time forever.
            await self._skip(row, now, "skipped: it ran before")
            return False
        self._gateway.storage.note(row.tenant, sum(len(item.body) for item in accept.items))
        return True

    def _key(self, spec: ScheduleSpec, due: float) -> Key:
        if spec.session == ISOLATED:
            return Key(f"{RESERVED_PREFIX}{spec.name}:{time_name(due)}")
        return Key(spec.session)

    async def _request(self, spec: ScheduleSpec) -> TurnRequest:
        fields: dict[str, msgspec.Raw] = {}
        if spec.instructions:
            fields["instructions"] = msgspec.Raw(msgspec.json.encode(spec.instructions))
        if spec.tools:
            tools: list[Mapping[str, str]] = [
                {"type": "mcp", "server_label": name.removeprefix("mcp:")}
                if name.startswith("mcp:")
                else {"type": "holdfast", "name": name}
                for name in spec.tools
            ]
            fields["tools"] = msgspec.Raw(msgspec.json.encode(tools))
        delivery = None
        if spec.deliver is not None and self._find_chat is not None:
            _, key, target = await self._find_chat(spec.deliver)
            if key == spec.session:
                delivery = _delivery(target)  # the run's own session is that of the chat
        return TurnRequest(api="responses", model=spec.model, fields=fields, delivery=delivery)

    async def _accept(self, tenant: Tenant, key: Key, request: TurnRequest, *, once: str) -> Accept:
        gateway, new_id = self._gateway, self._gateway.ids.new
        return Accept(
            tenant=tenant,
            turn_id=TurnId(new_id("turn")),
            run_id=RunId(new_id("run")),
            worker=gateway.worker.id,
            candidate_id=SessionId(new_id("ses")),
            key=key,
            request=write_request(request),
            source="cron",
            idempotency_key=once,
            limits=await gateway.storage.limits(tenant, gateway.limits),
        )

    # ── runs ────────────────────────────────────────────────────────────────────────────────

    async def _follow(self, row: ScheduleRow, now: float) -> bool:
        """Settle a run that has ended; return whether it is still running."""
        spec, turn_id = read_spec(row.spec), row.running_turn
        assert turn_id is not None
        view = await self._gateway.read.turn(row.tenant, turn_id)
        turn = view.turn if view is not None else None
        if turn is not None and turn.is_open:
            began = turn.started_at or turn.accepted_at
            if now - began > spec.timeout_seconds:
                await self._turns.cancel(turn, code="schedule_timeout")
            return True
        outcome, reason = "failed", "its session was deleted"
        is_lost = turn is not None and turn.error_code == TURN_ABANDONED
        if turn is not None:
            outcome, reason = turn.outcome or "failed", turn.error_message or turn.error_code or ""
        if turn is not None and outcome == "completed":
            # Deliver before settling: the delivery is idempotent, so a crash in between repeats
            # nothing.
            try:
                reason = await self._deliver(spec, turn)
            except (LaneFull, TenantFull, StorageFull) as exc:
                await self._note(row, f"waits to deliver: {exc.message}")
                return False
        settle = SettleRun(
            id=row.id, turn_id=turn_id, outcome=outcome, reason=reason, is_own_failure=not is_lost,
            if_paused=self._on_paused(row.tenant, row.name, reason),
        )  # fmt: skip
        await self._gateway.submit(settle)
        await self._forget_old_runs(row, spec)
        return False

    async def _note(self, row: ScheduleRow, reason: str) -> None:
        """Record why a schedule has not run yet."""
        if row.reason != reason:
            command = SkipRun(
                id=row.id, expected_at=row.next_run_at, next_run_at=row.next_run_at, reason=reason
            )
            await self._gateway.submit(command)

    async def _deliver(self, spec: ScheduleSpec, turn: Turn) -> str:
        """Deliver an answer to its conversation; return why not, or an empty text."""
        if spec.deliver is None:
            return ""
        if self._find_chat is None:
            return "not delivered: no channels are configured"
        try:
            tenant, key, target = await self._find_chat(spec.deliver)
            if key == spec.session:
                return ""
            result = await self._turns.load_result(turn.tenant, turn, turn.step)
            text = output_text(result.response.output).strip()
            has_files = bool(output_files(result.response.output))
            if text == "NO_REPLY" or not (text or has_files):
                return ""
            name = AnswerName(turn.tenant, response_id(turn.id, turn.step)) if has_files else None
            request = TurnRequest(
                api="responses",
                model=spec.model,
                delivery=_delivery(target),
                fixed_answer=text or FILES_FOLLOW,
                files_of=name,
            )
            once = gateway_key("delivery", turn.id)
            begin_context(self._gateway.ids.new("req"), tenant)
            accept = await self._accept(tenant, key, request, once=once)
            await self._turns.accept(accept, request, is_live=False)
        except (NotFound, InvalidInput, SessionDeleted) as exc:
            return f"not delivered: {exc.message}"
        return ""

    async def _forget_old_runs(self, row: ScheduleRow, spec: ScheduleSpec) -> None:
        """Delete the sessions of isolated runs beyond the last `keep_runs`."""
        if spec.session != ISOLATED:
            return
        runs = await self._gateway.store.schedules.runs(row.id, spec.keep_runs + 50)
        for run in runs[spec.keep_runs :]:
            if run.session_id is not None and run.outcome:
                with contextlib.suppress(NotFound):  # somebody else deleted it
                    await self._gateway.submit(
                        Delete(tenant=row.tenant, session_id=run.session_id, cascade=True)
                    )
                await self._gateway.submit(ForgetRun(id=row.id, scheduled_at=run.scheduled_at))

    # ── what operators ask ──────────────────────────────────────────────────────────────────

    async def save(self, tenant: Tenant, values: dict[str, Any]) -> ScheduleRow:
        """Create or change a schedule; it may deliver only to chats that wrote before."""
        spec = _parse(values)
        known_tools = self._tool_names(tenant)
        for number, tool in enumerate(spec.tools):
            if tool not in known_tools:
                raise InvalidInput(f"there is no tool {tool!r}", param=f"tools[{number}]")
        now = await self._now()
        if spec.at and next_time(spec, now, created_at=now) is None:
            raise InvalidInput(f"at: {spec.at} has passed", param="at")
        request = await self._request(msgspec.structs.replace(spec, deliver=None))
        try:
            await self._turns.check(tenant, request, (message("user", spec.prompt),), "cron")
        except ModelNotFound as exc:
            raise InvalidInput(exc.message, param="model") from exc
        if spec.deliver is not None:
            chat = await self._gateway.store.channels.chat(spec.deliver.channel, spec.deliver.to)
            if chat is None:
                raise InvalidInput(
                    f"deliver: {spec.deliver.to!r} never wrote to channel "
                    f"{spec.deliver.channel!r}; list such targets in the configuration file",
                    param="deliver",
                )
        return await self._save(tenant, spec, is_from_file=False)

    async def _save(self, tenant: Tenant, spec: ScheduleSpec, *, is_from_file: bool) -> ScheduleRow:
        now = await self._now()
        row = await self._gateway.submit(
            SaveSchedule(
                id=self._gateway.ids.new("sch"),
                tenant=tenant,
                name=spec.name,
                spec=write_spec(spec),
                next_run_at=next_time(spec, now, created_at=now),
                period_seconds=period_seconds(spec.every) if spec.every else None,
                is_from_file=is_from_file,
            )
        )
        self._news.set()
        return row

    async def _now(self) -> float:
        """Return the store's time, which decides what is due: clocks of replicas may differ."""
        now, _ = await self._gateway.store.schedules.active()
        return now

    async def run_now(self, tenant: Tenant, name: str) -> ScheduleRow:
        """Make a schedule due now; reject it if that would not run it."""
        while True:
            row = await self._gateway.store.schedules.schedule(tenant, name)
            if row is None:
                raise ScheduleNotFound(f"no schedule {name}")
            if row.is_paused:
                raise ScheduleBusy(f"schedule {name} is paused: resume it first")
            if await self._is_running(row):
                raise ScheduleBusy(f"the last run of schedule {name} still goes on")
            now = await self._now()
            command = SkipRun(
                id=row.id, expected_at=row.next_run_at, next_run_at=now, reason="run by hand"
            )
            if await self._gateway.submit(command):
                self._news.set()
                return msgspec.structs.replace(row, next_run_at=now, reason=command.reason)
            # The due time changed meanwhile, so read the schedule again.

    async def pause(self, tenant: Tenant, name: str, *, is_paused: bool) -> ScheduleRow:
        """Pause or resume a schedule."""
        row = await self._gateway.store.schedules.schedule(tenant, name)
        if row is None:
            raise ScheduleNotFound(f"no schedule {name}")
        following = next_time(read_spec(row.spec), await self._now(), created_at=row.created_at)
        command = PauseSchedule(
            tenant=tenant, name=name, is_paused=is_paused, next_run_at=following
        )
        return await self._gateway.submit(command)

    async def delete(self, tenant: Tenant, name: str) -> bool:
        """Delete a schedule and end its run."""
        row = await self._gateway.store.schedules.schedule(tenant, name)
        is_deleted = await self._gateway.submit(DeleteSchedule(tenant=tenant, name=name))
        if is_deleted and row is not None and row.running_turn is not None:
            view = await self._gateway.read.turn(tenant, row.running_turn)
            if view is not None:
                await self._turns.cancel(view.turn, code="schedule_deleted")
        return is_deleted


def _parse(values: dict[str, Any]) -> ScheduleSpec:
    """Parse a schedule from a request; errors name the field."""
    deliver = values.get("deliver")
    for place, raw, allowed in (
        ("", values, ScheduleSpec),
        ("deliver.", deliver if isinstance(deliver, dict) else {}, DeliverTo),
    ):
        unknown = sorted(set(raw) - set(allowed.__struct_fields__))
        if unknown:
            name = f"{place}{unknown[0]}"
            raise InvalidInput(f"a schedule has no {name!r}", param=name)
    try:
        spec = msgspec.convert(values, ScheduleSpec)
    except msgspec.ValidationError as exc:
        match = _PLACE.search(str(exc))
        raise InvalidInput(str(exc), param=match[1] or None if match else None) from exc
    try:
        check_spec(spec)
    except ValueError as exc:
        # Its message begins with the field, unless it is about several.
        name = str(exc).split(" ", 1)[0].rstrip(":")
        param = name if name in ScheduleSpec.__struct_fields__ else None
        raise InvalidInput(str(exc), param=param) from exc
    return spec


def _delivery(deliver: DeliverTo) -> Delivery:
    return Delivery(channel=deliver.channel, chat=deliver.to, thread=deliver.thread, is_quiet=True)
