"""Plan the first turn of a new session: from the command to its statements and cached lane.

Nothing is read before. The statement that adds the session is the gate: it adds no row if the key
has a session, live or not. If two first turns have the same key, the constraints of `sessions`
accept one of them; the other is planned again with reads. A key that is not cached is assumed to be
new only if the last key that was read was new. Otherwise each turn of a session that is no longer
cached would fail here first.
"""

from typing import Any

import msgspec

from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import LogAppended
from holdfast.core.transaction.first_turns import start_first_turn
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.entries import SAME_TIME, STARTED, pack_items, session_no
from holdfast.stores.sql.plan import Ask, Statement

# The generation is null, and the row is refused, if the key ever had a session. The constraints are
# not enough: the first generation that was imported may have another number than 1.
ADD_FIRST_SESSION = Statement(
    "add_first_session",
    sql.ADD_SESSION.text.replace(
        "?5,",
        "(select cast(?5 as bigint) where not exists "
        "(select 1 from sessions where tenant = ?3 and key = ?4)),",
    ),
    is_fenced=True,
)
KEY_AT = slice(2, 4)
"""Position of tenant and key in its parameters."""
_pack = msgspec.msgpack.Encoder().encode
_CREATED_AND_STARTED = [("session.created", False, b'{"generation":1}'), ("", True, b"{}")]
"""The events of the entry, packed. The kind of the second follows from the turn's state."""


def plan_first_turn(command: cmd.Accept, now: float, lanes: LaneCache) -> Planned | None:
    """Plan a turn whose session is not cached; None unless it is a plain first turn."""
    key = command.key
    if key is not None and not lanes.expects_new_keys:
        return None
    decision = start_first_turn(command, 1, now)
    if decision is None:
        return None
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, entry = change.session, change.entries[0]
    turn, run, item = entry.turn, entry.runs[0], entry.items[0]
    assert turn is not None
    no, turn_id, run_id, source = session_no(session.id), turn.id, run.id, turn.source
    name = "" if run_id == "run" + turn_id.removeprefix("turn") else run_id
    head = (
        1, 0, 0, "", name, session.owner, None, None, session.last_user_activity_at, 0, 0, 0, 0,
        False,
    )  # fmt: skip
    state: tuple[Any, ...] = (
        1, 1, source, turn.owner, 0, 1, turn.body_hash, None, None, 1, 1, 1, None, None, None,
        False, now, SAME_TIME, None, None,
    )  # fmt: skip
    attempt = (
        name, 1, 1, "", 0, 2, None, None, None, None, None, SAME_TIME, None, None, None, None, None,
        None, None,
    )  # fmt: skip
    identity = (
        no, session.id, session.tenant, key, 1, True, True, None, None, 0, 0, now, None, None,
        b"{}", source,
    )  # fmt: skip
    row = (
        no, 1, STARTED, now, turn_id, 1, 1, 2, None, _pack(head),
        _pack((state, (attempt,), (), _CREATED_AND_STARTED)), pack_items(entry.items), turn.request,
    )  # fmt: skip
    writes: list[Ask] = [
        (ADD_FIRST_SESSION if key is not None else sql.ADD_SESSION, identity),
        (sql.ADD_ENTRY, row),
        (sql.HOLD_LANE, (no, turn_id, run_id, turn.owner, None)),
    ]
    item_id = item.item_id
    if item_id is not None and item_id[-6:] != "000001":
        writes.append((sql.ADD_ITEM_ID, (no, item_id, 1)))
    return Planned(decision, writes, Lane(session, turn, run))
