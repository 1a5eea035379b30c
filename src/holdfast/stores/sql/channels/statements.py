"""Every statement about the outbox, pairings, receivers and chats, with the reason it is there.

Also how their rows become values, and changes statements.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple

from holdfast.core.model.channels import (
    BotTurnsRow,
    ChannelHoldRow,
    ChatRow,
    DeadUpdateRow,
    PairingRow,
    ReceiverRow,
)
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.transaction import changes as ch
from holdfast.core.transaction.changes import OutboxFileAdded
from holdfast.stores.sql.entries import EXPIRED
from holdfast.stores.sql.plan import Ask, Statement, columns, insert, row_reader, write_fields

_OUTBOX = (
    "id", "tenant", "channel", "chat", "thread", "source", "part", "session_id", "state", "body",
    "reply_to", "refusals", "next_at", "created_at", "owner", "external_id", "is_maybe_duplicate",
    "error", "settled_at", "approval", "file_name", "file_type",
)  # fmt: skip
"""The columns of a message, in the order of `OutboxRow`."""
_VALUES = ", ".join(f"?{n}" for n in range(1, len(_OUTBOX) + 1))
_COLUMNS = ", ".join(f"o.{name}" for name in _OUTBOX)
_WAITS = "o.state in ('pending', 'sending')"

# The answer replaces its turn's placeholder: if that has the platform's id, it becomes an edit. The
# owner stays: for a short time only the worker that streamed to it may send it. A turn that was run
# again after its failure was reported corrects that report.
ADD_MESSAGE = Statement(
    "add_message",
    f"insert into outbox ({', '.join(_OUTBOX)}) values ({_VALUES}) "
    "on conflict (id) do update set state = excluded.state, body = excluded.body, "
    "refusals = 0, next_at = excluded.next_at, settled_at = null, approval = excluded.approval",
)
ADD_FILE = insert("add_outbox_file", "outbox_files", OutboxFileAdded, key="message_id")
# The platform has the file now. Deleting a message also deletes its file.
DROP_FILE = Statement("drop_outbox_file", "delete from outbox_files where message_id = ?1")
FILE = Statement("outbox_file", "select content from outbox_files where message_id = ?1")
OPEN_PLACEHOLDER = Statement(
    "open_placeholder",
    f"insert into outbox ({', '.join(_OUTBOX)}) values ({_VALUES}) on conflict (id) do nothing",
)
STOP_PLACEHOLDER = Statement(
    "stop_placeholder",
    "update outbox set state = 'pending', body = ?2, next_at = ?3 where id = ?1 and state = 'open'",
)
# The note is appended to the message, and its buttons are removed. A message that was sent is
# edited; a worker that is just sending one checks the approval when it settles it. A request that
# was given up or dropped stays so.
END_APPROVAL = Statement(
    "end_approval",
    "update outbox set body = body || ?2, approval = 'ended', "
    "state = case when state = 'sent' then 'pending' else state end, "
    "refusals = case when state = 'sent' then 0 else refusals end, "
    "next_at = case when state = 'sent' then ?3 else next_at end, "
    "created_at = case when state = 'sent' then ?3 else created_at end, settled_at = null "
    "where approval = ?1 and approval <> '' and state in ('pending', 'sending', 'sent')",
)
# Requests that ended have a value that sorts before every id.
OPEN_REQUESTS = Statement(
    "open_requests",
    "select distinct approval, session_id from outbox where approval > ?3 and approval <> '' "
    "and tenant = ?1 and channel = ?2 and session_id is not null order by approval limit ?4",
)
# Compare-and-set: two workers that read the same message cannot both claim it.
SAVE_MESSAGE = Statement(
    "save_message",
    "update outbox set state = ?2, body = ?3, refusals = ?4, next_at = ?5, created_at = ?6, "
    "owner = ?7, external_id = ?8, is_maybe_duplicate = ?9, error = ?10, settled_at = ?11 "
    "where id = ?1 and state = ?12 and coalesce(owner, '') = ?13 and approval = ?14",
    is_fenced=True,
)
DROP_REST = Statement(
    "drop_rest",
    "update outbox set state = 'dead', error = ?3, settled_at = ?4 "
    # Not by the index of waiting messages, which may be many.
    "where source = ?1 and part > ?2 and state || '' = 'pending'",
)
PRUNE_OUTBOX = Statement("prune_outbox", "delete from outbox where settled_at < ?1")
# The session of a message that somebody replies to.
SENT_MESSAGE = Statement(
    "sent_message",
    "select session_id from outbox where tenant = ?1 and channel = ?2 and external_id = ?4 "
    "and chat = ?3 and session_id is not null limit 1",
)
MESSAGE = Statement("message", f"select {_COLUMNS} from outbox o where o.id = ?1")

WAITING_MESSAGE = Statement(
    "waiting_message",
    "select 1 from outbox where channel = ?1 and chat = ?2 and thread = ?3 "
    "and state in ('pending', 'sending') limit 1",
)
# The oldest waiting message of each conversation, if it is due and its sender is not alive. A
# message that another worker streams to is left to that worker until ?4. Ordered by due time, so
# that messages which keep failing come after those of conversations that were not tried yet.
DUE_MESSAGES = Statement(
    "due_messages",
    f"select {_COLUMNS} from outbox o left join workers w on w.id = o.owner "
    f"where {_WAITS} and o.channel = ?1 and o.next_at <= ?3 "
    # With the offset PostgreSQL looks up each conversation; a join may compare all with all.
    "and not exists (select 1 from outbox p where p.channel = o.channel and p.chat = o.chat "
    "and p.thread = o.thread and p.state in ('pending', 'sending') and p.pos < o.pos "
    "limit 1 offset 0) "
    f"and (w.id is null or w.alive_until = {EXPIRED} "
    "or (o.state = 'pending' and (o.owner = ?2 or o.next_at <= ?4))) "
    "order by o.next_at, o.pos limit ?5",
)
# The messages of a claim whose reply was lost.
CLAIMED_MESSAGES = Statement(
    "claimed_messages",
    f"select {_COLUMNS} from outbox o where {_WAITS} and o.channel = ?1 and o.state = 'sending' "
    "and o.owner = ?2 order by o.pos",
)
MESSAGES = Statement(
    "messages",
    f"select {_COLUMNS} from outbox o where (?1 = '' or o.tenant = ?1) "
    "and (?2 = '' or o.channel = ?2) and (?3 = '' or o.state = ?3) "
    "and (o.pos < ?4 or ?4 = 0) order by o.pos desc limit ?5",
)
MESSAGE_PLACE = Statement("message_place", "select pos from outbox where id = ?1")
OUTBOX_COUNTS = Statement(
    "outbox_counts",
    "select channel, state, count(*), min(created_at) from outbox "
    "where state in ('open', 'pending', 'sending', 'dead') group by channel, state",
)
ERASE_MESSAGES = Statement("erase_messages", "delete from outbox where session_id = ?1")
# What is to be sent of a turn of which an item is erased: the messages to a chat (?3: whether the
# item is a part of the answer, ?4: its id), copies of an approval request to other approvers, and
# facts for webhooks, which name the turn. Texts that were sent are not stored, except those of
# approval requests.
_OF_TURN = (
    "session_id = ?1 and ((?3 = 1 and source in (?2, ?4)) "
    # A client may give its items any id: without the prefix, `turn` would match every answer.
    "or (?3 = 1 and ?4 like 'mcpr!_%' escape '!' "
    "and substr(source, 1, length(?4) + 1) = ?4 || '_') "
    "or (source like 'evt!_%' escape '!' and body like '%' || ?2 || '%'))"
)
ERASE_TURN_FILES = Statement(
    "erase_turn_files",
    f"delete from outbox_files where message_id in (select id from outbox where {_OF_TURN})",
)
ERASE_TURN_MESSAGES = Statement(
    "erase_turn_messages",
    "update outbox set body = '', error = case when state in ('open', 'sent', 'dropped') "
    "then error else 'its content was erased' end, "
    "settled_at = case when state = 'open' then null else coalesce(settled_at, created_at) end, "
    "owner = case when state = 'open' then owner end, "
    "state = case when state in ('open', 'sent') then state else 'dropped' end "
    f"where {_OF_TURN}",
)

CURSOR = Statement("follower_cursor", "select txid, pos from cursors where view = ?1")
# Of a session that was not erased.
LAST_RECORD = Statement(
    "last_record",
    "select coalesce((select max(l.record) from log l where l.session = s.no "
    "and l.record is not null), 0) from sessions s where s.id = ?1 and s.deleted_at is null",
)
START_CURSOR = Statement(
    "start_cursor", "insert into cursors (view, txid, pos) values (?1, ?2, ?3)"
)
# Compare-and-set: of two followers that read the same facts, only one writes them.
MOVE_CURSOR = Statement(
    "move_cursor",
    "update cursors set txid = ?2, pos = ?3 where view = ?1 and txid = ?4 and pos = ?5",
    is_fenced=True,
)

SAVE_PAIRING = Statement(
    "save_pairing",
    "insert into pairings (channel, sender, tenant, name, code, chat, created_at, expires_at, "
    "approved_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) "
    "on conflict (channel, sender) do update set name = excluded.name, code = excluded.code, "
    "chat = excluded.chat, created_at = excluded.created_at, expires_at = excluded.expires_at, "
    "approved_at = excluded.approved_at",
)
DROP_PAIRING = Statement("drop_pairing", "delete from pairings where channel = ?1 and sender = ?2")
PAIRINGS = Statement(
    "pairings",
    f"select {columns(PairingRow)} from pairings where channel = ?1 order by created_at, sender",
)

HOLD = Statement(
    "channel_hold",
    "select h.channel, h.owner, h.since, w.alive_until from channel_holds h "
    "left join workers w on w.id = h.owner where h.channel = ?1",
)
TAKE_HOLD = insert("take_channel_hold", "channel_holds", ChannelHoldRow)
MOVE_HOLD = Statement(
    "move_channel_hold",
    "update channel_holds set owner = ?2, since = ?3 where channel = ?1 and owner = ?4",
    is_fenced=True,
)
DROP_HOLD = Statement(
    "drop_channel_hold", "delete from channel_holds where channel = ?1 and owner = ?2"
)

SAVE_CHAT = Statement(
    "save_chat",
    "insert into chats (channel, chat, successor, first_seen_at, person) "
    "values (?1, ?2, ?3, ?4, ?5) on conflict (channel, chat) do update set successor = "
    "case when excluded.successor = '' then chats.successor else excluded.successor end, "
    "person = excluded.person",
)
_CHATS = f"select {columns(ChatRow)} from chats where channel = ?1 "
CHATS = Statement("chats", _CHATS + "order by chat")
CHAT = Statement("chat", _CHATS + "and chat = ?2")
PREDECESSOR = Statement(
    "predecessor",
    "select chat from chats where channel = ?1 and successor = ?2 and successor <> '' limit 1",
)
ADD_DEAD_UPDATE = insert("add_dead_update", "dead_updates", DeadUpdateRow, key="channel, update_id")
DEAD_UPDATES = Statement(
    "dead_updates", f"select {columns(DeadUpdateRow)} from dead_updates order by at desc limit ?1"
)

BOT_TURNS = Statement(
    "bot_turns", f"select {columns(BotTurnsRow)} from bot_turns where channel = ?1 and chat = ?2"
)
START_BOT_TURNS = insert("start_bot_turns", "bot_turns", BotTurnsRow)
# Compare-and-set: replicas that receive concurrently share one count.
SAVE_BOT_TURNS = Statement(
    "save_bot_turns",
    "update bot_turns set messages = ?3 where channel = ?1 and chat = ?2 and messages = ?4",
    is_fenced=True,
)
DROP_BOT_TURNS = Statement(
    "drop_bot_turns", "delete from bot_turns where channel = ?1 and chat = ?2"
)

_RECEIVER = columns(ReceiverRow)
RECEIVER = Statement("receiver", f"select {_RECEIVER} from receivers where channel = ?1")
RECEIVERS = Statement("receivers", f"select {_RECEIVER} from receivers order by channel")
SAVE_RECEIVER = insert("save_receiver", "receivers", ReceiverRow, key="channel")


# ── rows and changes ──────────────────────────────────────────────────────────────────────────

read_receiver = row_reader(ReceiverRow)
read_message = row_reader(OutboxRow)


def _save_message(change: ch.OutboxSaved) -> Ask:
    row, before = change.row, change.before
    return SAVE_MESSAGE, (
        row.id, row.state, row.text, row.refusals, row.next_at, row.created_at, row.owner,
        row.external_id, row.is_maybe_duplicate, row.error, row.settled_at, before.state,
        before.owner or "", before.approval,
    )  # fmt: skip


def _hold(change: ch.ChannelHeld) -> Ask:
    if change.before is None:
        return TAKE_HOLD, (change.channel, change.owner, change.at)
    return MOVE_HOLD, (change.channel, change.owner, change.at, change.before)


def _move_cursor(change: ch.CursorMoved) -> Ask:
    if change.before is None:
        return START_CURSOR, (change.view, *change.after)
    return MOVE_CURSOR, (change.view, *change.after, *change.before)


def _save_bot_turns(change: ch.BotTurnsSaved) -> Ask:
    if change.before is None:
        return START_BOT_TURNS, astuple(change.row)
    return SAVE_BOT_TURNS, (*astuple(change.row), change.before.messages)


WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.OutboxAdded: lambda change: (ADD_MESSAGE, astuple(change.row)),
    ch.OutboxFileAdded: write_fields(ADD_FILE),
    ch.OutboxFileDropped: write_fields(DROP_FILE),
    ch.PlaceholderOpened: lambda change: (OPEN_PLACEHOLDER, astuple(change.row)),
    ch.PlaceholderStopped: write_fields(STOP_PLACEHOLDER),
    ch.ApprovalEnded: write_fields(END_APPROVAL),
    ch.OutboxSaved: _save_message,
    ch.OutboxRestDropped: write_fields(DROP_REST),
    ch.OutboxPruned: write_fields(PRUNE_OUTBOX),
    ch.CursorMoved: _move_cursor,
    PairingRow: write_fields(SAVE_PAIRING),
    ch.PairingDropped: write_fields(DROP_PAIRING),
    ch.ChannelHeld: _hold,
    ch.ChannelReleased: write_fields(DROP_HOLD),
    ChatRow: write_fields(SAVE_CHAT),
    DeadUpdateRow: write_fields(ADD_DEAD_UPDATE),
    ch.BotTurnsSaved: _save_bot_turns,
    ch.BotTurnsDropped: write_fields(DROP_BOT_TURNS),
    ReceiverRow: write_fields(SAVE_RECEIVER),
}
"""The statement that writes each change about a channel."""
