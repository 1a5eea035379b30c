"""What the end of a run is decided on: its lane, and the turn that it may be handed to."""

from msgspec.structs import replace

from holdfast.core.transaction.commands import Finish
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql.facts import fenced_facts, find_turn, with_block
from holdfast.stores.sql.plan import Plan


def finish_facts(command: Finish, now: float) -> Plan[Facts]:
    """Return a run's lane; where somebody waits in it, with the turn that is to have it next."""
    facts = yield from fenced_facts(command, now)
    successor = command.successor
    if successor is None or not facts.waiting.count or not command.fence.holds(facts.session):
        return facts
    turn = yield from find_turn(successor.turn_id)
    if turn is None:
        return facts
    return (yield from with_block(replace(facts, turn=turn), turn))
