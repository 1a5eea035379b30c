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
    """A turn of another store: its items and its times.

    Fields that only another Holdfast store knows default to those of a completed turn.
    """

    items: tuple[NewItem, ...]
    partial: frozenset[int] = frozenset()
    """The indexes of items that are incomplete."""
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
    """Return the turn without its ids, for when they are in use already."""
    return replace(turn, id=None, runs=tuple(replace(run, id=None) for run in turn.runs))


Order = tuple[tuple[int, int], ...]
"""The log as blocks of turns: the index of each block's turn, and its number of items."""

ImportStatus = Literal["added", "set_aside", "extended", "unchanged", "erased", "differs", "taken"]


class Imported(msgspec.Struct, frozen=True):
    """The result of an import; `added` is the number of items.

    `set_aside`: stored as a retired generation, because the key has its own live session here.
    `erased`: it was deleted here and is not imported again. `differs`: the source no longer matches
    the earlier import, or the session was continued here. `taken`: another tenant has the id.
    """

    session_id: SessionId
    status: ImportStatus
    added: int = 0
