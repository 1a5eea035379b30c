"""What may be done about a provider's failure: one heal for each class, and never a loop.

A heal happens only before anything of the answer has left for the client. What is not healed here
fails the turn in the provider's own words; the session takes the next turn all the same.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.core.errors import FailureClass

HealAction = Literal[
    "dropped_state", "stripped_opaque", "repaired", "waited", "shrunk", "quarantined", "retried",
    "fell_back", "summed_up_by_rule",
]  # fmt: skip
MAX_WORDS = 500
"""How much of a provider's words is kept with a heal."""


class Heal(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt that failed and what was done about it: a fact, kept with its run."""

    failure_class: FailureClass
    action: HealAction
    code: str | None = None
    pause_seconds: float = 0.0
    upstream: str | None = None
    """Who failed, and asked for which model."""
    model: str | None = None
    status: int | None = None
    message: str | None = None
    """The beginning of what the provider said."""
    next_model: str | None = None
    """The model that is asked instead, after a fall-back."""
    items: tuple[int, ...] = ()
    """The items that are left out from now on, after a quarantine."""


class HealLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of healing within one turn."""

    transient_retries: int = 2
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 8.0
    retry_within_seconds: float = 60.0
    busy_wait_seconds: float = 30.0
    shrinks: int = 3
    """How often a request that is too long may be made shorter; each time it must be."""
    quarantines: int = 3
    """How many guesses there are at what a provider cannot take, each a wider one."""


_MODELS_OWN_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "model_not_supported", "unsupported_model"}
)
_MODELS_OWN_WORDS = re.compile(
    r"not supported (?:with|by|for|when using) (?:this|the|that)?\s*model"
    r"|\bmodel\b.{0,120}\bdoes(?: not|n't) support"
    r"|not supported in this model",
    re.IGNORECASE | re.DOTALL,
)


def is_models_own(code: str | None, message: str) -> bool:
    """Whether a request is refused for what this one model cannot do: another may."""
    return code in _MODELS_OWN_CODES or _MODELS_OWN_WORDS.search(message) is not None


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """A failure and what is known about the call that failed."""

    failure_class: FailureClass
    code: str | None = None
    retry_after: float | None = None
    elapsed_seconds: float = 0.0
    """Since the turn began to ask."""
    has_output: bool = False
    """Whether anything of the answer has left for the client."""
    uses_state: bool = False
    is_state_mutable: bool = False
    has_opaque: bool = True
    """Whether the call may have carried sealed content."""
    is_plain: bool = False
    """Whether the call was the plainest there is."""
    can_shrink: bool = False
    """Whether somebody can make the request shorter."""
    suspects: tuple[int, ...] = ()
    """Items that the provider may be unable to take."""
    blames_request: bool = False
    """Whether the request itself is at fault, so that no other server would take it either."""
    fallback: str | None = None
    """The model that may be asked instead."""


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """How to go on: wait, then ask again, with less."""

    heal: Heal
    drops_state: bool = False
    strips_opaque: bool = False
    repairs: bool = False
    shrinks: bool = False


def treat(symptoms: Symptoms, done: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    """Return what to do about a failure after the heals that were `done`; None: let it fail."""
    if symptoms.has_output:
        return None
    # A summary that failed was another call: it takes nothing from what this one may cost.
    done = [heal for heal in done if heal.action != "summed_up_by_rule"]
    found = _heal(symptoms, _of_this_model(done), limits)
    return found if found is not None else _fall_back(symptoms)


def _of_this_model(done: Sequence[Heal]) -> Sequence[Heal]:
    """Another model starts from the same turn, and is healed for itself."""
    for place in range(len(done), 0, -1):
        if done[place - 1].action == "fell_back":
            return done[place:]
    return done


def _heal(symptoms: Symptoms, done: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    same = [heal for heal in done if heal.failure_class == symptoms.failure_class]
    match symptoms.failure_class:
        case "stale_state":
            return _replay(symptoms) if not same else None
        case "foreign_opaque":
            return _strip(symptoms) if not same and symptoms.has_opaque else None
        case "shape":
            return _repair(symptoms) if not same and not symptoms.is_plain else None
        case "busy":
            return _wait(symptoms, same, limits)
        case "overflow":
            return _shrink(symptoms) if len(same) < limits.shrinks else None
        case "poison":
            return _quarantine(symptoms) if len(same) < limits.quarantines else None
        case "transient":
            return _retry(symptoms, same, limits)
        case "terminal":
            # Refused in words that nobody knows, but they name a picture or a file of the log.
            return _quarantine(symptoms) if len(same) < limits.quarantines else None


def _replay(symptoms: Symptoms) -> Treatment | None:
    """Tell everything anew. Where nothing was chained, sealed content must have named it."""
    if symptoms.uses_state:
        heal = Heal(symptoms.failure_class, "dropped_state", symptoms.code)
        return Treatment(heal=heal, drops_state=True)
    return _strip(symptoms) if symptoms.has_opaque else None


def _strip(symptoms: Symptoms) -> Treatment:
    heal = Heal(symptoms.failure_class, "stripped_opaque", symptoms.code)
    return Treatment(heal=heal, strips_opaque=True)


def _repair(symptoms: Symptoms) -> Treatment:
    """Tell it anew in the plainest form there is: what we sent was wrong for this server."""
    heal = Heal("shape", "repaired", symptoms.code)
    return Treatment(heal=heal, repairs=True, drops_state=symptoms.uses_state)


def _shrink(symptoms: Symptoms) -> Treatment | None:
    if not symptoms.can_shrink:
        return None
    heal = Heal("overflow", "shrunk", symptoms.code)
    return Treatment(heal=heal, shrinks=True, drops_state=symptoms.uses_state)


def _quarantine(symptoms: Symptoms) -> Treatment | None:
    """Leave out what the provider cannot take, and the state that may hold it."""
    if not symptoms.suspects:
        return None
    heal = Heal(symptoms.failure_class, "quarantined", symptoms.code, items=symptoms.suspects)
    return Treatment(heal=heal, drops_state=symptoms.uses_state)


def _fall_back(symptoms: Symptoms) -> Treatment | None:
    """Ask another model for the same turn, where the failure is not the turn's own fault."""
    if symptoms.fallback is None or symptoms.blames_request:
        return None
    heal = Heal(
        symptoms.failure_class, "fell_back", symptoms.code, next_model=symptoms.fallback
    )  # fmt: skip
    return Treatment(heal=heal)


def _wait(symptoms: Symptoms, same: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    pause = _pause(symptoms, len(same), limits)
    if pause is not None:
        # Waiting has an end also where the provider says to come back at once.
        pause = max(pause, _backed_off(len(same), limits))
    waited = sum(heal.pause_seconds for heal in same)
    if pause is None or waited + pause > limits.busy_wait_seconds:
        return None
    return Treatment(heal=Heal("busy", "waited", symptoms.code, pause))


def _retry(symptoms: Symptoms, same: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    pause = _pause(symptoms, len(same), limits)
    is_late = symptoms.elapsed_seconds > limits.retry_within_seconds
    if pause is None or is_late or len(same) >= limits.transient_retries:
        return None
    # What a broken call did to a conversation is not known; it is told anew in another.
    return Treatment(
        heal=Heal("transient", "retried", symptoms.code, pause),
        drops_state=symptoms.uses_state and symptoms.is_state_mutable,
    )


def _pause(symptoms: Symptoms, count: int, limits: HealLimits) -> float | None:
    """Return how long to wait; None when the provider asks for more than a turn may wait."""
    if symptoms.retry_after is not None:
        asked = symptoms.retry_after
        return asked if asked <= limits.max_pause_seconds else None
    return _backed_off(count, limits)


def _backed_off(count: int, limits: HealLimits) -> float:
    return min(limits.first_pause_seconds * float(2 ** min(count, 32)), limits.max_pause_seconds)


_decode = msgspec.json.Decoder(list[Heal]).decode


def read_heals(kept: bytes | None) -> list[Heal]:
    """Return the heals that a run keeps."""
    return _decode(kept) if kept else []


def write_heals(heals: Sequence[Heal]) -> bytes:
    """Return heals as a run keeps them."""
    return msgspec.json.encode(list(heals))
