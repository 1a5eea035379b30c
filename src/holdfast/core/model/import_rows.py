"""Turns and runs of another store, as an import reads them."""

from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Usage
from holdfast.core.model.turn import Outcome, Source


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run recorded in another store."""

    id: RunId | None = None
    epoch: int
    worker: WorkerId
    step: int
    outcome: Outcome
    error_code: str | None = None
    error_message: str | None = None
    started_at: float
    ended_at: float | None = None
    usage: Usage | None = None
    heals: bytes | None = None
    late: bytes | None = None


class ImportedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of another store: its part of the transcript, and its times.

    What only another store of ours can tell has the defaults of a turn that went well.
    """

    items: tuple[NewItem, ...]
    partial: frozenset[int] = frozenset()
    """Which of the items were cut off before they were whole."""
    at: float | None = None
    ended_at: float | None = None
    is_by_user: bool = True
    id: TurnId | None = None
    source: Source | None = None
    step: int = 0
    attempts: int = 0
    outcome: Outcome = "completed"
    error_code: str | None = None
    error_message: str | None = None
    accepted_at: float | None = None
    has_begun: bool = True
    runs: tuple[ImportedRun, ...] = ()


def nameless(turn: ImportedTurn) -> ImportedTurn:
    """Return the turn without ids: those it had are in use."""
    return replace(turn, id=None, runs=tuple(replace(run, id=None) for run in turn.runs))


Order = tuple[tuple[int, int], ...]
"""A log as blocks of turns: whose items come next, and how many of them."""

ImportStatus = Literal["added", "set_aside", "extended", "unchanged", "erased", "differs", "taken"]


class Imported(msgspec.Struct, frozen=True):
    """What became of it; `added` counts items.

    `set_aside`: kept as a retired generation, because the key has a life of its own here.
    `erased`: it was deleted here, and stays so. `differs`: what was taken over before is not what
    the source says now, or was continued here. `taken`: the id is in use.
    """

    session_id: SessionId
    status: ImportStatus
    added: int = 0
