"""Run blocks: which run a write belongs to, found through the context wrapper of the SDK."""

import asyncio
from typing import Any

from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.transaction.commands import Appended

_BLOCKS_ATTRIBUTE = "_holdfast_blocks"
_READ_ATTRIBUTE = "_holdfast_met"


class RunBlock:
    """The items of one run in one session, bound to the generation that the run read first."""

    def __init__(self, turn_id: TurnId, session_id: SessionId | None = None) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.ordinal = 0
        """Number of the next batch; incremented once a batch is known to be in the log."""
        self._unconfirmed: tuple[NewItem, ...] | None = None
        """The last batch, while it is unknown whether it reached the log."""
        self.append_lock = asyncio.Lock()
        self.is_standalone = False
        """Whether its batches belong to no run and need not stay together."""
        self.candidate_id: SessionId | None = None
        """Unused session id, kept for the next append."""
        self.spare_turn_id: TurnId | None = None
        """Turn to start if another writer appended after this block's own turn."""
        self.last_append: Appended | None = None
        """Result of the previous batch."""

    def assign_ordinal(self, batch: tuple[NewItem, ...]) -> None:
        """Number a batch, with the previous number if it repeats an unconfirmed batch.

        Nobody knows whether a cancelled or unanswered batch was stored, so a different batch must
        not reuse its number: it would be taken for the repeat.
        """
        if self._unconfirmed is not None and self._unconfirmed != batch:
            self.ordinal += 1
        self._unconfirmed = batch

    def confirm(self) -> None:
        """Note that the last batch is in the log."""
        self._unconfirmed = None


def find_block(wrapper: Any, scope: str) -> RunBlock | None:
    """Return the block of the run that owns `wrapper`, if it has used the session before.

    The block is stored on the wrapper, which a run resumed in this process copies.
    """
    blocks: dict[str, RunBlock] | None = getattr(wrapper, _BLOCKS_ATTRIBUTE, None)
    return blocks.get(scope) if blocks is not None else None


def is_first_read(wrapper: Any, scope: str) -> bool:
    """Record that the run of `wrapper` reads the session; return whether it is the first time."""
    scopes: set[str] | None = getattr(wrapper, _READ_ATTRIBUTE, None)
    if scopes is None:
        scopes = set()
        setattr(wrapper, _READ_ATTRIBUTE, scopes)
    is_first = scope not in scopes
    scopes.add(scope)
    return is_first


def bind_block(wrapper: Any, scope: str, block: RunBlock) -> None:
    """Store the block of the run that owns `wrapper`."""
    blocks: dict[str, RunBlock] | None = getattr(wrapper, _BLOCKS_ATTRIBUTE, None)
    if blocks is None:
        blocks = {}
        setattr(wrapper, _BLOCKS_ATTRIBUTE, blocks)
    blocks[scope] = block
