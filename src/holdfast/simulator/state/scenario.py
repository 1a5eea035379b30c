"""Read scenarios: the simulator's configuration, from TOML files."""

import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.simulator.faults.effects import Effect, read_fault
from holdfast.simulator.faults.matching import Match
from holdfast.simulator.faults.quantities import Chance, Count, Name, Ordinal, Seconds
from holdfast.simulator.state.profiles import ProfileName

DEFAULT_MODELS = ("gpt-4.1", "gpt-5.2", "gpt-5.4", "gpt-5.5", "claude-sonnet-4-5")
TOO_LARGE = "the number or the nesting is too large to be read"
_ANYTHING = Match()
T = TypeVar("T")


class InvalidScenario(ValueError):
    """Invalid configuration; the message names the place in one line."""


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call that the model makes."""

    name: str
    arguments: dict[str, Any] | str = {}


class Script(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A scripted answer, and the calls that get it."""

    when: Match = _ANYTHING
    times: Count | None = None
    text: str | None = None
    words: Count | None = None
    """A long answer of this many words."""
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ScriptedCall] = []
    between_seconds: Seconds = 0.0
    """The pause between two events."""


class ForgetSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """When stored responses and items expire."""

    after_seconds: Count | None = None
    """Older than this by the simulator's clock."""
    chance: Chance = 0.0
    """This share of all responses, chosen by the seed."""


BarrierStage = Literal["arrival", "running", "answer", "event"]


class BarrierSpec(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which calls to hold, and at which stage."""

    name: Name | None = None
    when: Match = _ANYTHING
    at: BarrierStage = "running"
    event: Count = 1
    """For `at = "event"`: hold after this many events."""
    times: Count | None = None


class Scenario(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A whole scenario; the defaults describe a well-behaved provider."""

    seed: int = 0
    profile: ProfileName = "openai"
    keys: list[str] = []
    """The only keys accepted; empty accepts any."""
    models: list[str] = []
    """The only models that exist; empty accepts any."""
    context_tokens: Ordinal | None = None
    """The context window; by default 400,000, and 200,000 of Anthropic's."""
    context: dict[str, Ordinal] = {}
    """Context windows by model glob."""
    reasoning_models: tuple[str, ...] = ("gpt-5*", "o1*", "o3*", "o4*")
    unlink_models: list[str] = []
    """Models with which conversations lose their earlier assistant items (R16)."""
    overflow: Literal["before", "stream"] = "before"
    forget: ForgetSettings = ForgetSettings()
    record_limit: Ordinal = 100_000
    answers: list[Script] = msgspec.field(default_factory=list, name="answer")
    faults: list[Effect] = msgspec.field(default_factory=list, name="fault")
    barriers: list[BarrierSpec] = msgspec.field(default_factory=list, name="barrier")


def read_scenario(raw: dict[str, Any]) -> Scenario:
    """Return the scenario in `raw`, or raise `InvalidScenario`."""
    written = dict(raw)
    faults = written.pop("fault", [])
    if not isinstance(faults, list):
        raise InvalidScenario("fault: expected a list of tables ([[fault]])")
    scenario = convert(written, Scenario)
    _refuse_duplicate_names(scenario.barriers)
    read = [fault_of(fault, where=f"fault[{number}]") for number, fault in enumerate(faults)]
    return msgspec.structs.replace(scenario, faults=read)


def _refuse_duplicate_names(barriers: list[BarrierSpec]) -> None:
    names = set()
    for number, barrier in enumerate(barriers):
        if barrier.name is not None and barrier.name in names:
            raise InvalidScenario(f"barrier[{number}]: barrier {barrier.name!r} already exists")
        names.add(barrier.name)


def fault_of(raw: Any, *, where: str) -> Effect:
    """Return the fault in `raw`, or raise `InvalidScenario` with its place."""
    try:
        return read_fault(raw)
    except msgspec.ValidationError as exc:
        raise InvalidScenario(f"{where}: {exc}") from exc


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in the TOML file `path`, or raise `InvalidScenario`."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidScenario(f"{path}: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise InvalidScenario(f"{path}: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidScenario(f"{path}: {TOO_LARGE}") from exc
    try:
        return read_scenario(raw)
    except InvalidScenario as exc:
        raise InvalidScenario(f"{path}: {exc}") from exc


def convert(raw: Any, kind: type[T], *, from_text: bool = False) -> T:
    """Return `raw` as a `kind`, or raise `InvalidScenario`; `from_text` reads numbers from text."""
    try:
        return msgspec.convert(raw, kind, strict=not from_text)
    except msgspec.ValidationError as exc:
        raise InvalidScenario(str(exc)) from exc
