"""What can be set about lanes and workers."""

from dataclasses import dataclass
from typing import Literal

from holdfast.core.commands import LaneLimits
from holdfast.core.errors import InvalidSetting
from holdfast.core.healing import HealLimits
from holdfast.core.summaries import DEFAULT_PROMPT
from holdfast.core.turn import OnBusy

OnDisconnect = Literal["complete", "cancel"]
ContextMode = Literal["model", "elide", "off"]

_NEVER_NEGATIVE = ("max_waiting", "max_wait_seconds", "tool_wait_seconds")
_ALWAYS_POSITIVE = ("lease_seconds", "poll_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How streams are held open, and what becomes of a turn whose client leaves."""

    on_disconnect: OnDisconnect = "complete"
    """Whether a turn completes or is cancelled when its client disconnects."""
    keep_alive_seconds: float = 15.0
    """How long a stream may be idle before a comment is sent to keep its connection open."""
    websocket_seconds: float = 3600.0
    """How long a WebSocket connection may last."""

    def __post_init__(self) -> None:
        if self.on_disconnect not in ("complete", "cancel"):
            raise InvalidSetting(
                f"sessions.on_disconnect must be complete or cancel, not {self.on_disconnect!r}"
            )
        for name in ("keep_alive_seconds", "websocket_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"sessions.{name} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """`[lanes]` of the configuration."""

    on_busy: OnBusy = "enqueue"
    """What a turn does if its session is busy and its request does not say."""
    max_waiting: int = 64
    """Turns that may wait in one lane; the next caller gets `lane_full`."""
    max_wait_seconds: float = 600.0
    """How long a turn waits for its lane before it fails with `lane_timeout`."""
    tool_wait_seconds: float = 120.0
    """How long a lane is held for the outputs of the client's own tools."""
    lease_seconds: float = 10.0
    """A worker that does not renew its lease for this long loses its lanes."""
    max_attempts: int = 3
    """Runs of one turn that may lose their worker before the turn fails."""
    poll_seconds: float = 0.05
    """How often waiting turns poll for writes of other processes, if the store cannot notify."""

    def __post_init__(self) -> None:
        for name in (*_NEVER_NEGATIVE, *_ALWAYS_POSITIVE, "max_attempts"):
            if not isinstance(getattr(self, name), int | float):
                raise InvalidSetting(f"lanes.{name} must be a number")
        for name in _NEVER_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise InvalidSetting(f"lanes.{name} must not be negative")
        for name in _ALWAYS_POSITIVE:
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"lanes.{name} must be positive")
        if self.max_attempts < 1:
            raise InvalidSetting("lanes.max_attempts must be at least 1")
        if self.on_busy not in ("enqueue", "reject", "interrupt", "rollback"):
            raise InvalidSetting(
                f"lanes.on_busy must be enqueue, reject, interrupt or rollback, "
                f"not {self.on_busy!r}"
            )

    def limits(self, *, can_run_again: bool, max_tenant_turns: int = 0) -> LaneLimits:
        """Return the part that the store checks in its commit."""
        return LaneLimits(
            max_waiting=self.max_waiting,
            max_attempts=self.max_attempts,
            max_tenant_turns=max_tenant_turns,
            can_run_again=can_run_again,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """`[retention]`: what is erased by itself; nothing, unless it is set."""

    sessions_days: float = 0.0
    """Sessions without activity for this many days are archived, then erased; 0 means never."""
    archive: str = ""
    """The folder for archived sessions; needed with `sessions_days`."""
    traces_days: float = 0.0
    """Days until stream journals, idempotency keys and events are deleted; 0 means never."""
    sweep_minutes: float = 60.0
    """How often retention runs."""

    def __post_init__(self) -> None:
        if not self.sessions_days >= 0:
            raise InvalidSetting("retention.sessions_days must not be negative")
        if self.sessions_days and not self.archive:
            raise InvalidSetting(
                "retention.archive: say where sessions are archived, as sessions_days needs"
            )
        if self.traces_days and not self.traces_days >= 1:
            raise InvalidSetting("retention.traces_days must be at least 1")
        if not self.sweep_minutes > 0:
            raise InvalidSetting("retention.sweep_minutes must be positive")

    @property
    def is_on(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.sessions_days or self.traces_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealSettings:
    """How far a turn goes to be answered when its provider fails."""

    transient_retries: int = 2
    """Retries of a call that failed before its first token."""
    first_pause_seconds: float = 0.5
    """The first pause, if the provider names none; doubled each time."""
    max_pause_seconds: float = 8.0
    """The longest pause; if a provider asks for more, the turn fails and the client is told."""
    retry_within_seconds: float = 60.0
    """A call that fails later than this after the first call of the turn is not retried."""
    busy_wait_seconds: float = 30.0
    """How long a turn waits in total for a provider that is busy with the conversation."""
    turn_seconds: float = 3600.0
    """The maximum time for a turn, including pauses and heals."""

    def __post_init__(self) -> None:
        for name in ("transient_retries", "busy_wait_seconds", "retry_within_seconds"):
            if getattr(self, name) < 0:
                raise InvalidSetting(f"heals.{name} must not be negative")
        for name in ("first_pause_seconds", "max_pause_seconds", "turn_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(f"heals.{name} must be positive")

    def limits(self) -> HealLimits:
        """Return the part that decides about a heal."""
        return HealLimits(
            transient_retries=self.transient_retries,
            first_pause_seconds=self.first_pause_seconds,
            max_pause_seconds=self.max_pause_seconds,
            retry_within_seconds=self.retry_within_seconds,
            busy_wait_seconds=self.busy_wait_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """`[context]`: how long conversations are kept within their models' windows."""

    mode: ContextMode = "model"
    """A model writes summaries, the oldest items are shortened and omitted, or nothing is done."""
    threshold: float = 0.85
    """The share of the window, without the reserve, that a request may fill before compaction."""
    target: float = 0.5
    """The share that a compaction reduces it to."""
    reserve_tokens: int = 4096
    """Reserved for the answer, if the request sets no limit; at most half the window."""
    summary_tokens: int = 1500
    """The maximum length of a summary."""
    model: str | None = None
    """The model that writes summaries; unset: the model of the request."""
    prompt: str = DEFAULT_PROMPT
    """The instructions for that model."""

    def __post_init__(self) -> None:
        if self.mode not in ("model", "elide", "off"):
            raise InvalidSetting(f"context.mode must be model, elide or off, not {self.mode!r}")
        if not 0 < self.target < self.threshold <= 1:
            raise InvalidSetting("context: 0 < target < threshold <= 1 must hold")
        if self.reserve_tokens < 0:
            raise InvalidSetting("context.reserve_tokens must not be negative")
        if self.summary_tokens < 50:
            raise InvalidSetting("context.summary_tokens must be at least 50")
        if not self.prompt.strip():
            raise InvalidSetting("context.prompt must not be empty")
