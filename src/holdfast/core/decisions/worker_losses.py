"""Which deaths of workers count against a turn, and when it is given up.

A turn that kills its process must not do so for ever. But most processes die of something else: of
a deployment, of another turn, of the machine (decision 0028).
"""

from msgspec.structs import replace

from holdfast.core.model.turn import NO_LOSSES, Run, Turn, WorkerDeath
from holdfast.core.transaction.commands import LaneLimits
from holdfast.core.transaction.facts import Facts

TURN_ABANDONED = "turn_abandoned"
SUSPECT_SECONDS = 60.0
"""A step that ran for longer before its worker died is not suspected to be the cause."""
SUSPECT_RUNS = 4
"""Where more ran, each of them is suspected only if it dies at the same step again."""
DEATHS_PER_ATTEMPT = 4
"""A turn is given up after this many times `max_attempts` deaths, whatever caused them."""
ASK_AGAIN_SECONDS = 3600.0


def with_loss(turn: Turn, facts: Facts, *, is_forsaken: bool) -> Turn:
    """Return the turn that has the lane, with the loss of its worker counted.

    A worker that said goodbye is no loss. One that lives and has forgotten its run always counts.
    """
    death = facts.owner_death
    if death is None and not is_forsaken:
        return turn
    before = turn.losses or NO_LOSSES
    place = _place(turn)
    is_suspect = is_forsaken or (
        death is not None and _is_suspect(death, facts.active_run, turn, place)
    )
    losses = replace(
        before, crashes=before.crashes + is_suspect, deaths=before.deaths + 1, place=place
    )
    return replace(turn, losses=losses)


def is_given_up(turn: Turn, limits: LaneLimits) -> bool:
    """Whether a turn has lost too many workers to be run again."""
    losses = turn.losses or NO_LOSSES
    is_exhausted = losses.deaths >= DEATHS_PER_ATTEMPT * limits.max_attempts
    return losses.crashes >= limits.max_attempts or is_exhausted


def may_ask_again(turn: Turn, limits: LaneLimits, now: float) -> bool:
    """Whether a repeated request may run a turn again that was given up."""
    if turn.outcome != "failed" or turn.error_code != TURN_ABANDONED:
        return False
    if turn.source in ("channel", "cron"):
        return False  # nobody asks: the platform sends the message again
    losses = turn.losses or NO_LOSSES
    is_new_hour = now - losses.asked_since >= ASK_AGAIN_SECONDS
    return is_new_hour or losses.asked_again < limits.max_attempts


def asked_again(turn: Turn, limits: LaneLimits, now: float) -> Turn:
    """Return a turn that is run again after it was given up: the next suspected death ends it."""
    losses = turn.losses or NO_LOSSES
    is_new_hour = now - losses.asked_since >= ASK_AGAIN_SECONDS
    losses = replace(
        NO_LOSSES,
        crashes=limits.max_attempts - 1,
        asked_again=1 if is_new_hour else losses.asked_again + 1,
        asked_since=now if is_new_hour else losses.asked_since,
    )
    return replace(turn, losses=losses)


def _is_suspect(death: WorkerDeath, run: Run | None, turn: Turn, place: int) -> bool:
    before = turn.losses or NO_LOSSES
    began = max(run.started_at if run is not None else 0.0, before.stepped_at)
    if death.at - began >= SUSPECT_SECONDS:
        return False
    is_same_step = before.deaths > 0 and before.place == place
    return death.running <= SUSPECT_RUNS or is_same_step


def _place(turn: Turn) -> int:
    """Return how many items of a turn are finished: its block may be moved."""
    if turn.kept_seq is None or turn.first_seq is None:
        return 0
    return turn.kept_seq - turn.first_seq + 1
