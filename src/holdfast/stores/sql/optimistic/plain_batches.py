"""Plan a batch that continues the last one of an external run: from the command to its row.

The result of the last batch, which the command carries, is all that it needs. It equals what
`decide_from_cache` and `LaneCache.note` come to.
"""

from typing import Any

from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import LogAppended
from holdfast.core.transaction.plain_batches import continue_plainly
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.entries import (
    ENDED,
    SAME_TIME,
    head_values,
    pack,
    pack_items,
    session_no,
    turn_values,
)
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.plan import Ask

_APPENDED = "items.appended"


def plan_batch(command: cmd.AppendBatch, now: float, lanes: LaneCache) -> Planned | None:
    """Plan a batch, in one step if it only continues the last one."""
    decision = continue_plainly(command, now)
    if decision is None:
        return decide_from_cache(command, now, lanes)
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, before, entry = change.session, change.before, change.entries[0]
    turn, items = entry.turn, entry.items
    assert turn is not None
    assert before is not None
    no, turn_id, seq = session_no(session.id), turn.id, session.head_seq
    started = SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at
    state: tuple[Any, ...] = (*turn_values(turn), started, now, turn.input)
    if turn.merged_into is not None:
        state += (turn.merged_into,)
    # Without a detail, the event is about all items of the turn.
    detail = None if items[0].seq == turn.first_seq else entry.events[0].body
    row = (
        no, session.version, ENDED, now, turn_id, seq, session.turn_count, session.event_no, None,
        pack(head_values(session)), pack((state, (), (), ((_APPENDED, True, detail),))),
        pack_items(items), None,
    )  # fmt: skip
    writes: list[Ask] = [(sql.APPEND_ENTRY, row)]
    for item in items:
        if item.item_id is not None and item.item_id[-6:] != f"{item.seq:06x}":
            writes += ((sql.ADD_ITEM_ID, (no, item.item_id, item.seq)),)
    # A lane that is not cached as it was at the last batch stays unknown.
    known = lanes.find(session.id)
    is_known = known is not None and known[0].session.version == before.version
    return Planned(decision, writes, Lane(session) if is_known and session.is_live else None)
