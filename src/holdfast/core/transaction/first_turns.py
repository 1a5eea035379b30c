"""Decide the first turn of a new session if it is one message that starts at once.

Session, turn and run are one entry of the log, built here in one step. All other first turns are
decided step by step on a `Draft`, which gives the same result for these.
"""

from operator import attrgetter

import msgspec

from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.item_ids import mint_name
from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import USER_ACTIVITY, Fence, Run, Turn
from holdfast.core.transaction.changes import Decision, Entry, Event, LogAppended
from holdfast.core.transaction.commands import Accept, Queued, Repeated, Started
from holdfast.core.transaction.plain_turns import ACCEPT_OPTIONS

_options = attrgetter(*ACCEPT_OPTIONS)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Accept)}
_NO_OPTIONS = tuple(_DEFAULTS[name] for name in ACCEPT_OPTIONS)
_CREATED = b'{"generation":%d}'
"""Body of the event `session.created`."""


def start_first_turn(
    command: Accept, generation: int, now: float
) -> Decision[Started | Queued | Repeated] | None:
    """Create a session and start its first turn; None if the turn is not plain.

    The caller has checked that the key has no live session and that the turn is no repeat.
    """
    if command.session_id is not None or _options(command) != _NO_OPTIONS:
        return None
    limits, items = command.limits, command.items
    if limits.full_bytes or limits.max_tenant_turns or len(items) != 1:
        return None
    item = items[0]
    if item.is_instruction or item.kind == APPROVAL or command.on_busy == "steer":
        return None
    session_id, tenant, turn_id = command.candidate_id, command.tenant, command.turn_id
    run_id, worker, source = command.run_id, command.worker, command.source
    # Positional arguments take less than half the time of keywords.
    session = Session(
        session_id, tenant, command.key, generation, True, True, None, None, 0, 0, 1, 1, 1, 0, 2, 1,
        0, turn_id, run_id, worker, None, None, now, now if source in USER_ACTIVITY else None, None,
        None, 0, 0, 0, 0, b"{}", False, source,
    )  # fmt: skip
    turn = Turn(
        turn_id, session_id, tenant, 1, 1, source, worker, 0, 1, None, command.request,
        command.body_hash, None, None, 1, 1, 1, None, None, None, False, now, now, None, None, 0,
    )  # fmt: skip
    run = Run(
        run_id, turn_id, session_id, generation, 1, worker, 0, 2, None, None, None, None, None, now,
        None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    stored = StoredItem(
        session_id, 1, 1, item.kind, item.item_id or mint_name(item.kind, session_id, 1, now),
        item.call_id, item.fingerprint, False, item.body,
    )  # fmt: skip
    events = [
        Event(session_id, 1, tenant, "session.created", None, _CREATED % generation, now),
        Event(session_id, 2, tenant, "turn.started", turn_id, b"{}", now),
    ]
    entry = Entry(turn, True, [run], [stored], [], events)
    started = Started(turn, session, run, Fence(session_id, generation, run_id, 1))
    return Decision(started, (LogAppended(session, None, (entry,), now),))
