"""Which run writes: the SDK hands every method of a session the wrapper of its run's context."""

import asyncio
from typing import Any

from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.items import NewItem
from holdfast.core.transaction.commands import Appended

_ATTRIBUTE = "_holdfast_blocks"
_MET = "_holdfast_met"


class Block:
    """The items of one run in one session: bound to the generation that the run first met."""

    def __init__(self, turn_id: TurnId, session_id: SessionId | None = None) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.ordinal = 0
        """The number of the next batch; it goes up once a batch is known to be in the log."""
        self._doubted: tuple[NewItem, ...] | None = None
        """A batch of which it is not known whether it is in the log, if there is one."""
        self.adding = asyncio.Lock()
        self.is_loose = False
        """Whether its batches belong to no run, and need not stay together."""
        self.candidate_id: SessionId | None = None
        """For a session, should one have to be made."""
        self.spare_turn_id: TurnId | None = None
        """The turn that is begun, should others have come behind the block's own."""
        self.known: Appended | None = None
        """What the batch before left behind."""

    def number(self, batch: tuple[NewItem, ...]) -> None:
        """Give a batch its number: that of the one before, if it is the same once more.

        Of one that was cancelled, or that no answer came to, nobody knows. Another one may not
        be taken for its repeat.
        """
        if self._doubted is not None and self._doubted != batch:
            self.ordinal += 1
        self._doubted = batch

    def settle(self) -> None:
        """The batch is in the log."""
        self._doubted = None


def block_of(wrapper: Any, name: str) -> Block | None:
    """Return the block of the run that `wrapper` belongs to, if it has met the session before.

    It is kept with the wrapper, of which a run that is resumed in this process has a copy.
    """
    blocks: dict[str, Block] | None = getattr(wrapper, _ATTRIBUTE, None)
    return blocks.get(name) if blocks is not None else None


def meets_first(wrapper: Any, name: str) -> bool:
    """Whether the run that `wrapper` belongs to reads the session for the first time."""
    met: set[str] | None = getattr(wrapper, _MET, None)
    if met is None:
        met = set()
        setattr(wrapper, _MET, met)
    is_first = name not in met
    met.add(name)
    return is_first


def keep_block(wrapper: Any, name: str, block: Block) -> None:
    """Remember the block of the run that `wrapper` belongs to."""
    blocks: dict[str, Block] | None = getattr(wrapper, _ATTRIBUTE, None)
    if blocks is None:
        blocks = {}
        setattr(wrapper, _ATTRIBUTE, blocks)
    blocks[name] = block
