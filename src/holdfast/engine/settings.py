"""The settings of the engine's components."""

from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.core.compaction.summary_prompts import DEFAULT_PROMPT
from holdfast.core.errors import InvalidSetting
from holdfast.core.healing.policy import HealLimits
from holdfast.core.model.turn import OnBusy
from holdfast.core.transaction.commands import MAX_HOLD_SECONDS, LaneLimits

OnDisconnect = Literal["complete", "cancel"]
ToolScope = Literal["key", "agent", "tenant"]
ContextMode = Literal["model", "elide", "off"]

_NEVER_NEGATIVE = ("max_waiting", "max_wait_seconds", "tool_wait_seconds")
_ALWAYS_POSITIVE = ("lease_seconds", "poll_seconds")


def _require_positive(section: str, settings: object, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) > 0:
            raise InvalidSetting(f"{section}.{name} must be positive")


def _require_not_negative(section: str, settings: object, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) >= 0:
            raise InvalidSetting(f"{section}.{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """`[sessions]`: how streams are kept open, and what a client's disconnect means."""

    on_disconnect: OnDisconnect = "complete"
    """What a turn does when its client disconnects: complete or cancel."""
    keep_alive_seconds: float = 15.0
    """How long a stream may be silent before a comment keeps its connection open."""
    websocket_seconds: float = 3600.0
    """How long a WebSocket connection may last."""

    def __post_init__(self) -> None:
        if self.on_disconnect not in ("complete", "cancel"):
            raise InvalidSetting(
                f"sessions.on_disconnect must be complete or cancel, not {self.on_disconnect!r}"
            )
        _require_positive("sessions", self, "keep_alive_seconds", "websocket_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """`[lanes]` of the configuration."""

    on_busy: OnBusy = "enqueue"
    """What a turn does that finds its session busy, unless its request says otherwise."""
    max_waiting: int = 64
    """Turns that may wait in one lane; the next caller gets `lane_full`."""
    max_wait_seconds: float = 600.0
    """How long a turn waits for its lane before it fails with `lane_timeout`."""
    tool_wait_seconds: float = 120.0
    """How long a lane is held for the outputs of the client's own tools."""
    lease_seconds: float = 10.0
    """A worker that does not renew for this long loses its lanes to others."""
    max_attempts: int = 3
    """How many workers a turn may seem to kill before it fails; a restart never counts."""
    poll_seconds: float = 0.05
    """How often to poll for writes of other processes, where the store cannot notify."""

    def __post_init__(self) -> None:
        for name in (*_NEVER_NEGATIVE, *_ALWAYS_POSITIVE, "max_attempts"):
            if not isinstance(getattr(self, name), int | float):
                raise InvalidSetting(f"lanes.{name} must be a number")
        _require_not_negative("lanes", self, *_NEVER_NEGATIVE)
        _require_positive("lanes", self, *_ALWAYS_POSITIVE)
        if self.tool_wait_seconds > MAX_HOLD_SECONDS:
            raise InvalidSetting(f"lanes.tool_wait_seconds must be at most {MAX_HOLD_SECONDS:.0f}")
        if self.max_attempts < 1:
            raise InvalidSetting("lanes.max_attempts must be at least 1")
        if self.on_busy not in get_args(OnBusy):
            raise InvalidSetting(
                f"lanes.on_busy must be enqueue, reject, interrupt, rollback or steer, "
                f"not {self.on_busy!r}"
            )

    def limits(self, *, can_run_again: bool, max_tenant_turns: int = 0) -> LaneLimits:
        """Return the limits that the store checks in its commits."""
        return LaneLimits(
            max_waiting=self.max_waiting,
            max_attempts=self.max_attempts,
            max_tenant_turns=max_tenant_turns,
            can_run_again=can_run_again,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """`[tools]`: bounds of the tools that the gateway runs."""

    max_tool_steps: int = 32
    """Steps of tools in one turn; then the model is asked once more, without tools."""
    tool_seconds: float = 60.0
    """How long one call of a tool may take."""
    turn_seconds: float = 900.0
    """How long a run of a turn may go on starting steps of tools; waits begin a new run."""
    output_bytes: int = 256 * 1024
    """The largest output of a tool that the model is shown; a longer one is cut."""
    turn_bytes: int = 4 * 1024 * 1024
    """Bytes of outputs in one turn; then the model is asked once more, without tools."""
    approval_seconds: float = 600.0
    """How long a turn waits for the approval of a call."""
    approvers: tuple[str, ...] = ()
    """Ids of API keys that may approve every call, and `admin` for all admin keys."""
    scope: ToolScope = "key"
    """Which sessions built-in tools see: those of the caller's key, agent or whole tenant."""

    def __post_init__(self) -> None:
        _require_positive(
            "tools", self, "max_tool_steps", "tool_seconds", "turn_seconds", "output_bytes",
            "turn_bytes", "approval_seconds",
        )  # fmt: skip
        if self.approval_seconds > MAX_HOLD_SECONDS:
            raise InvalidSetting(f"tools.approval_seconds must be at most {MAX_HOLD_SECONDS:.0f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """`[retention]`: what is erased automatically; nothing by default."""

    sessions_days: float = 0.0
    """Sessions without activity for so many days are archived, then erased."""
    archive: str = ""
    """The folder for archived sessions; needed with `sessions_days`."""
    traces_days: float = 0.0
    """Journals of ended streams, idempotency keys and events are deleted after so many days."""
    sweep_minutes: float = 60.0
    """How often to sweep."""

    def __post_init__(self) -> None:
        _require_not_negative("retention", self, "sessions_days")
        if self.sessions_days and not self.archive:
            raise InvalidSetting(
                "retention.sessions_days needs retention.archive: the folder for archived sessions"
            )
        if self.traces_days and not self.traces_days >= 1:
            raise InvalidSetting("retention.traces_days must be at least 1")
        _require_positive("retention", self, "sweep_minutes")

    @property
    def is_on(self) -> bool:
        """Whether any retention is configured."""
        return bool(self.sessions_days or self.traces_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealSettings:
    """`[heals]`: how far a turn goes to be answered when its provider fails."""

    transient_retries: int = 2
    """How often a call is retried that failed before its first output."""
    first_pause_seconds: float = 0.5
    """The first pause, unless the provider names one; each further pause is twice as long."""
    max_pause_seconds: float = 8.0
    """The longest pause; a provider that asks for more fails the turn, and the client learns it."""
    retry_within_seconds: float = 60.0
    """A call that fails later than this after the first one is not retried."""
    busy_wait_seconds: float = 30.0
    """How long a turn waits in total for a provider that is busy with the conversation."""
    turn_seconds: float = 3600.0
    """How long a turn may take, pauses and heals included."""

    def __post_init__(self) -> None:
        never_negative = ("transient_retries", "busy_wait_seconds", "retry_within_seconds")
        _require_not_negative("heals", self, *never_negative)
        always_positive = ("first_pause_seconds", "max_pause_seconds", "turn_seconds")
        _require_positive("heals", self, *always_positive)

    def limits(self) -> HealLimits:
        """Return the limits by which heals are decided."""
        return HealLimits(
            transient_retries=self.transient_retries,
            first_pause_seconds=self.first_pause_seconds,
            max_pause_seconds=self.max_pause_seconds,
            retry_within_seconds=self.retry_within_seconds,
            busy_wait_seconds=self.busy_wait_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """`[context]`: how conversations are kept within the windows of their models."""

    mode: ContextMode = "model"
    """Summaries by a model, elision of the oldest items by rule, or neither."""
    threshold: float = 0.85
    """The share of a window, without the reserve, above which a request is compacted."""
    target: float = 0.5
    """The share that a compaction reduces it to."""
    reserve_tokens: int = 4096
    """Space for the answer, unless the request names it; at most half the window."""
    unknown_window_tokens: int = 2_000_000
    """The window of a model whose window is not known; 0 means that nothing limits its requests."""
    summary_tokens: int = 1500
    """The longest summary."""
    model: str | None = None
    """The model that writes summaries; by default the one of the turn."""
    prompt: str = DEFAULT_PROMPT
    """The prompt of that model."""

    def __post_init__(self) -> None:
        if self.mode not in ("model", "elide", "off"):
            raise InvalidSetting(f"context.mode must be model, elide or off, not {self.mode!r}")
        if not 0 < self.target < self.threshold <= 1:
            raise InvalidSetting("context: 0 < target < threshold <= 1 must hold")
        _require_not_negative("context", self, "reserve_tokens", "unknown_window_tokens")
        if self.summary_tokens < 50:
            raise InvalidSetting("context.summary_tokens must be at least 50")
        if not self.prompt.strip():
            raise InvalidSetting("context.prompt must not be empty")
