"""What there is to know before a running turn is given more items."""

from msgspec.structs import replace

from holdfast.core.transaction.changes import IdempotencyRow
from holdfast.core.transaction.commands import Extend
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.facts import fenced_facts
from holdfast.stores.sql.plan import Plan, one


def extend_facts(command: Extend, now: float) -> Plan[Facts]:
    """The run's lane; and for a batch that counts once, whether it came before."""
    facts = yield from fenced_facts(command, now)
    if command.idempotency_key is None:
        return facts
    found = yield from one(sql.IDEMPOTENCY_BY_KEY, command.tenant, command.idempotency_key)
    return replace(facts, repeat=IdempotencyRow(*found)) if found else facts
