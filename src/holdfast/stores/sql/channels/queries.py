"""Queries about channels for operators and schedules."""

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.channels import (
    ChannelHoldRow,
    ChatRow,
    DeadUpdateRow,
    PairingRow,
    ReceiverRow,
)
from holdfast.core.model.delivery import APPROVAL_ENDED, OutboxRow
from holdfast.ports.outbox import OpenRequest, OutboxCount, OutboxQuery
from holdfast.stores.sql.channels import statements as sql
from holdfast.stores.sql.channels.statements import read_message, read_receiver
from holdfast.stores.sql.lookups import find_repeat, find_turn, is_living
from holdfast.stores.sql.plan import Plan, SnapshotReader, every_as, one, one_as, reading


def _messages(tenant: Tenant | None, query: OutboxQuery) -> Plan[list[OutboxRow]]:
    place = 0
    if query.after is not None:
        row = yield from one(sql.MESSAGE_PLACE, query.after)
        place = row[0] if row is not None else 0
    filters = (tenant or "", query.channel or "", query.state or "")
    return (yield from every_as(read_message, sql.MESSAGES, *filters, place, query.limit))


def _has_waiting(channel: str, chat: str, thread: str) -> Plan[bool]:
    return (yield from one(sql.WAITING_MESSAGE, channel, chat, thread)) is not None


def _message(message_id: str) -> Plan[OutboxRow | None]:
    return one_as(read_message, sql.MESSAGE, message_id)


def _file(message_id: str) -> Plan[bytes | None]:
    row = yield from one(sql.FILE, message_id)
    return bytes(row[0]) if row is not None else None


def _session_of(
    tenant: Tenant, channel: str, chat: str, external_id: str, message_key: str
) -> Plan[SessionId | None]:
    row = yield from one(sql.SENT_MESSAGE, tenant, channel, chat, external_id)
    if row is not None:
        return SessionId(row[0])
    repeat = yield from find_repeat(tenant, message_key)
    turn = yield from find_turn(repeat.turn_id if repeat is not None else None)
    return turn.session_id if turn is not None else None


def _open_requests(
    tenant: Tenant, channel: str, *, after: str, limit: int
) -> Plan[list[OpenRequest]]:
    return every_as(OpenRequest, sql.OPEN_REQUESTS, tenant, channel, after or APPROVAL_ENDED, limit)


def _is_recorded(tenant: Tenant, key: str) -> Plan[bool]:
    return (yield from find_repeat(tenant, key)) is not None


def _counts() -> Plan[list[OutboxCount]]:
    return every_as(OutboxCount, sql.OUTBOX_COUNTS)


def _pairings(channel: str) -> Plan[list[PairingRow]]:
    return every_as(PairingRow, sql.PAIRINGS, channel)


def _chat(channel: str, chat: str) -> Plan[ChatRow | None]:
    return one_as(ChatRow, sql.CHAT, channel, chat)


def _chats(channel: str) -> Plan[list[ChatRow]]:
    return every_as(ChatRow, sql.CHATS, channel)


def _predecessor(channel: str, chat: str) -> Plan[str | None]:
    row = yield from one(sql.PREDECESSOR, channel, chat)
    return str(row[0]) if row is not None else None


def _dead_updates(limit: int) -> Plan[list[DeadUpdateRow]]:
    return every_as(DeadUpdateRow, sql.DEAD_UPDATES, limit)


def _receivers() -> Plan[list[ReceiverRow]]:
    return every_as(read_receiver, sql.RECEIVERS)


def _cursor(view: str) -> Plan[tuple[int, int] | None]:
    row = yield from one(sql.CURSOR, view)
    return (row[0], row[1]) if row is not None else None


def _holder(channel: str) -> Plan[ChannelHoldRow | None]:
    row = yield from one(sql.HOLD, channel)
    if row is None or not is_living(row[3]):
        return None
    return ChannelHoldRow(*row[:3])


class SqlChannelReader(SnapshotReader):
    """Channel queries; see `ports.outbox.ChannelReader`."""

    messages = reading(_messages)
    message = reading(_message)
    file = reading(_file)
    session_of = reading(_session_of)
    open_requests = reading(_open_requests)
    is_recorded = reading(_is_recorded)
    has_waiting = reading(_has_waiting)
    counts = reading(_counts)
    pairings = reading(_pairings)
    chat = reading(_chat)
    chats = reading(_chats)
    predecessor = reading(_predecessor)
    dead_updates = reading(_dead_updates)
    cursor = reading(_cursor)
    receivers = reading(_receivers)
    holder = reading(_holder)
