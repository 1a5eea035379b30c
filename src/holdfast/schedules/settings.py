"""`[[schedule]]`: a turn that runs by the clock."""

from dataclasses import dataclass
from typing import Literal

from holdfast.core.errors import InvalidSetting
from holdfast.core.model.schedule import DeliverTo, ScheduleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverSettings:
    """`deliver` of a schedule: the chat that its answers go to."""

    channel: str
    """Name of a `[[channel]]`."""
    to: str
    """The platform's id of the chat."""
    thread: str = ""
    """Thread or topic in the chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """`[[schedule]]`: exactly one of `cron`, `every` and `at` says when it runs."""

    name: str
    """Unique name in its tenant."""
    prompt: str
    """The message that the run begins with."""
    cron: str = ""
    """Five fields, such as `0 9 * * 1-5`."""
    every: str = ""
    """A period, such as `30s`, `15m` or `2h`."""
    at: str = ""
    """One time, as ISO 8601."""
    timezone: str = "UTC"
    """IANA time zone of `cron`, and of an `at` without an offset."""
    model: str = ""
    """Model that answers."""
    instructions: str = ""
    """Instructions of the run."""
    tools: tuple[str, ...] = ()
    """Tools that the gateway runs for it."""
    session: str = "isolated"
    """`isolated` for a fresh session for each run, or a session key."""
    deliver: DeliverSettings | None = None
    """Chat that the answer goes to; none by default."""
    missed: Literal["once", "skip"] = "once"
    """After a stop: run the latest missed time of the last 24 hours, or none."""
    timeout_seconds: float = 3600.0
    """A run that takes longer is cancelled."""
    keep_runs: int = 20
    """Isolated runs whose sessions are kept."""
    tenant: str = "default"
    """Tenant that owns the sessions."""

    def __post_init__(self) -> None:
        from holdfast.schedules.times import check_spec

        try:
            check_spec(self.spec())
        except ValueError as exc:
            raise InvalidSetting(f"schedule {self.name}: {exc}") from exc

    def spec(self) -> ScheduleSpec:
        """Return what the store keeps."""
        deliver = self.deliver
        return ScheduleSpec(
            name=self.name, prompt=self.prompt, cron=self.cron, every=self.every, at=self.at,
            timezone=self.timezone, model=self.model, instructions=self.instructions,
            tools=self.tools, session=self.session, missed=self.missed,
            timeout_seconds=self.timeout_seconds, keep_runs=self.keep_runs,
            deliver=DeliverTo(deliver.channel, deliver.to, deliver.thread) if deliver else None,
        )  # fmt: skip
