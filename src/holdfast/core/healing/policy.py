"""Decide what to do about a provider's failure: a bounded number of heals for each class.

A heal happens only before any output has reached the client. A failure that is not healed fails the
turn with the provider's own message; the session still accepts the next turn.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.core.errors import FailureClass
from holdfast.core.model.request import SentRequest

HealAction = Literal[
    "dropped_state", "stripped_opaque", "repaired", "waited", "shrunk", "quarantined", "retried",
    "fell_back", "summed_up_by_rule", "left_out",
]  # fmt: skip
MAX_LEFT_OUT = 2
"""How often earlier input is left out: first messages, then instructions as well."""
MAX_MESSAGE = 500
"""How many characters of a provider's message are stored with a heal."""


class Heal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failed attempt and what was done about it; stored with its run."""

    failure_class: FailureClass
    action: HealAction
    code: str | None = None
    pause_seconds: float = 0.0
    upstream: str | None = None
    """The upstream that failed, and the model it was called for."""
    model: str | None = None
    status: int | None = None
    message: str | None = None
    """The beginning of the provider's message."""
    next_model: str | None = None
    """The model that is called instead, after a fallback."""
    items: tuple[int, ...] = ()
    """The items that are replaced by placeholders from now on, after a quarantine."""
    sent: SentRequest | None = None
    """The request that failed."""
    left_out: tuple[int, ...] = ()
    """The items that are left out when the request is sent again; they are hidden if that
    succeeds."""


class HealLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of healing within one turn."""

    transient_retries: int = 2
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 8.0
    retry_within_seconds: float = 60.0
    busy_wait_seconds: float = 30.0
    shrinks: int = 3
    """How often a request that is too long may be shortened; each time it must get shorter."""
    quarantines: int = 3
    """How many guesses at the refused item are allowed; each one covers more items than the
    last."""


_MODEL_LIMIT_CODES = frozenset(
    {"unsupported_parameter", "unsupported_value", "model_not_supported", "unsupported_model"}
)
_MODEL_LIMIT_TEXT = re.compile(
    r"not supported (?:with|by|for|when using) (?:this|the|that)?\s*model"
    r"|\bmodel\b.{0,120}\bdoes(?: not|n't) support"
    r"|not supported in this model",
    re.IGNORECASE | re.DOTALL,
)


def is_model_limit(code: str | None, message: str) -> bool:
    """Return whether a request needs something that this model lacks; another may have it."""
    return code in _MODEL_LIMIT_CODES or _MODEL_LIMIT_TEXT.search(message) is not None


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """A failure and what is known about the call that failed."""

    failure_class: FailureClass
    code: str | None = None
    retry_after: float | None = None
    elapsed_seconds: float = 0.0
    """Seconds since the turn's first attempt."""
    has_output: bool = False
    """Whether any output has reached the client."""
    uses_state: bool = False
    is_state_mutable: bool = False
    has_opaque: bool = True
    """Whether the call may have contained encrypted content."""
    is_plain: bool = False
    """Whether the call already had the plainest form."""
    can_shrink: bool = False
    """Whether the history of the request can be shortened."""
    suspects: tuple[int, ...] = ()
    """Items that the provider may refuse."""
    blames_request: bool = False
    """Whether the request itself is at fault, so that another server would refuse it as well."""
    fallback: str | None = None
    """The model to fall back to."""
    unanswered: tuple[int, ...] = ()
    """Earlier items that may be the cause, if the input is refused as a whole."""


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """How to continue: wait, then call again with these changes."""

    heal: Heal
    drops_state: bool = False
    strips_opaque: bool = False
    repairs: bool = False
    shrinks: bool = False


def treat(symptoms: Symptoms, done: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    """Return how to heal a failure after the heals in `done`, or None if the turn has to fail."""
    if symptoms.has_output:
        return None
    # A failed summary was another call: it does not count against this one's limits.
    done = [heal for heal in done if heal.action != "summed_up_by_rule"]
    here = _of_this_model(done)
    others = [heal for heal in here if heal.action != "left_out"]
    treatment = _heal(symptoms, others, limits)
    return treatment or _leave_out(symptoms, here) or _fall_back(symptoms)


def _of_this_model(done: Sequence[Heal]) -> Sequence[Heal]:
    """Return the heals since the last fallback: each model has its own limits."""
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
            # The message is unknown, but it mentions an image or a file of the log.
            return _quarantine(symptoms) if len(same) < limits.quarantines else None


def _replay(symptoms: Symptoms) -> Treatment | None:
    """Send the whole history. If no state was chained, encrypted content must be the cause."""
    if symptoms.uses_state:
        heal = Heal(symptoms.failure_class, "dropped_state", symptoms.code)
        return Treatment(heal=heal, drops_state=True)
    return _strip(symptoms) if symptoms.has_opaque else None


def _strip(symptoms: Symptoms) -> Treatment:
    heal = Heal(symptoms.failure_class, "stripped_opaque", symptoms.code)
    return Treatment(heal=heal, strips_opaque=True)


def _repair(symptoms: Symptoms) -> Treatment:
    """Call again in the plainest form: this server rejects the form of the call."""
    heal = Heal("shape", "repaired", symptoms.code)
    return Treatment(heal=heal, repairs=True, drops_state=symptoms.uses_state)


def _shrink(symptoms: Symptoms) -> Treatment | None:
    if not symptoms.can_shrink:
        return None
    heal = Heal("overflow", "shrunk", symptoms.code)
    return Treatment(heal=heal, shrinks=True, drops_state=symptoms.uses_state)


def _quarantine(symptoms: Symptoms) -> Treatment | None:
    """Leave out the refused items, and the provider's state that may contain them."""
    if not symptoms.suspects:
        return None
    heal = Heal(symptoms.failure_class, "quarantined", symptoms.code, items=symptoms.suspects)
    return Treatment(heal=heal, drops_state=symptoms.uses_state)


def _leave_out(symptoms: Symptoms, done: Sequence[Heal]) -> Treatment | None:
    """Call again without earlier input that no model has answered: it may be the cause."""
    count = sum(1 for heal in done if heal.action == "left_out")
    if not symptoms.unanswered or count >= MAX_LEFT_OUT:
        return None
    heal = Heal(
        symptoms.failure_class, "left_out", symptoms.code, left_out=symptoms.unanswered
    )  # fmt: skip
    return Treatment(heal=heal, drops_state=symptoms.uses_state)


def _fall_back(symptoms: Symptoms) -> Treatment | None:
    """Call another model, unless the request itself is at fault."""
    if symptoms.fallback is None or symptoms.blames_request:
        return None
    heal = Heal(
        symptoms.failure_class, "fell_back", symptoms.code, next_model=symptoms.fallback
    )  # fmt: skip
    return Treatment(heal=heal)


def _wait(symptoms: Symptoms, same: Sequence[Heal], limits: HealLimits) -> Treatment | None:
    pause = _pause(symptoms, len(same), limits)
    if pause is not None:
        # The number of retries is bounded even if the provider asks to retry at once.
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
    # A failed call may have changed a conversation in an unknown way: start another one.
    return Treatment(
        heal=Heal("transient", "retried", symptoms.code, pause),
        drops_state=symptoms.uses_state and symptoms.is_state_mutable,
    )


def _pause(symptoms: Symptoms, count: int, limits: HealLimits) -> float | None:
    """Return how long to wait, or None if the provider asks for more than a turn may wait."""
    if symptoms.retry_after is not None:
        seconds = symptoms.retry_after
        return seconds if seconds <= limits.max_pause_seconds else None
    return _backed_off(count, limits)


def _backed_off(count: int, limits: HealLimits) -> float:
    return min(limits.first_pause_seconds * float(2 ** min(count, 32)), limits.max_pause_seconds)


_decode = msgspec.json.Decoder(list[Heal]).decode


def read_heals(stored: bytes | None) -> list[Heal]:
    """Return the heals stored with a run."""
    return _decode(stored) if stored else []


def write_heals(heals: Sequence[Heal]) -> bytes:
    """Serialize heals for storage with their run."""
    return msgspec.json.encode(list(heals))
