"""The outbox: which messages are sent next, by whom, and with which result."""

from msgspec.structs import replace

from holdfast.core.errors import Conflict, IdempotencyMismatch, NotFound, RunFenced
from holdfast.core.ids import TurnId
from holdfast.core.model.delivery import APPROVAL_ENDED, Fact, OutboxRow, first_part
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    Change,
    CursorMoved,
    Decision,
    IdempotencyRow,
    OutboxAdded,
    OutboxFileDropped,
    OutboxPruned,
    OutboxRestDropped,
    OutboxSaved,
    PlaceholderOpened,
    refuse,
)
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import message_changes, message_row, to_message

MAX_ERROR = 500
REST_ERROR = "an earlier part of this answer could not be delivered"


class MessageNotFound(NotFound):
    """The outbox has no message of this id."""

    code = "message_not_found"


class MessageSettled(Conflict):
    """The state of the message does not allow this."""

    code = "message_settled"


def open_placeholder(command: cmd.OpenPlaceholder, facts: Facts) -> Decision[OutboxRow]:
    """Reserve the first message of an answer; only the owner of the lane may do so."""
    session = facts.session
    if session is None or not command.fence.holds(session) or session.active_turn_id is None:
        return refuse(RunFenced(f"run {command.fence.run_id} does not own its session"))
    existing = facts.messages[0] if facts.messages else None
    if existing is not None:
        if existing.owner == command.worker or existing.state != "open":
            return Decision(existing)
        claimed = replace(
            existing,
            owner=command.worker,
            is_maybe_duplicate=existing.is_maybe_duplicate or existing.external_id is None,
        )
        return Decision(claimed, (OutboxSaved(claimed, existing),))
    row = message_row(
        to_message(command.delivery, ""), tenant=session.tenant, source=session.active_turn_id,
        part=first_part(command.step), now=facts.now, session_id=session.id, state="open",
    )  # fmt: skip
    row = replace(row, owner=command.worker)
    return Decision(row, (PlaceholderOpened(row),))


def keep_placeholder(command: cmd.KeepPlaceholder, facts: Facts) -> Decision[bool]:
    """Record a placeholder's id; return whether the placeholder may still be edited."""
    row = facts.messages[0] if facts.messages else None
    is_waiting = row is not None and row.state in ("open", "pending", "sending")
    if row is None or not is_waiting or row.owner != command.worker:
        return Decision(False)
    if row.external_id is not None:
        return Decision(row.state == "open" and row.external_id == command.external_id)
    saved = replace(
        row,
        external_id=command.external_id,
        is_maybe_duplicate=row.is_maybe_duplicate or command.external_id is None,
    )
    return Decision(saved.state == "open", (OutboxSaved(saved, row),))


def queue_messages(command: cmd.QueueMessages, facts: Facts) -> Decision[bool]:
    """Write messages that belong to no turn, once per key."""
    if facts.repeat is not None:
        if facts.repeat.body_hash != command.body_hash:
            return refuse(IdempotencyMismatch("the idempotency key was used with another body"))
        return Decision(command.again and facts.repeat.turn_id == command.record_id)
    if facts.messages:
        return Decision(command.again)
    changes: list[Change] = []
    if command.idempotency_key is not None:
        named = TurnId(command.record_id)
        for key in (command.idempotency_key, *command.more_keys):
            once = IdempotencyRow(command.tenant, key, command.body_hash, named, 0, facts.now)
            changes.append(once)
    for part, message in enumerate(command.messages):
        row = message_row(
            message, tenant=command.tenant, source=command.record_id, part=part, now=facts.now
        )
        changes += message_changes(row, message)
    return Decision(True, tuple(changes))


def queue_facts(command: cmd.QueueFacts, facts: Facts) -> Decision[bool]:
    """Write facts for webhooks; the cursor that moves with them makes it happen once."""
    if facts.cursor != command.after:
        return Decision(command.again and facts.cursor == command.upto)
    if any(_may_be_erased(fact, facts) for fact in command.facts):
        return Decision(False)
    changes: list[Change] = [CursorMoved(command.view, command.after, command.upto)]
    for fact in command.facts:
        if fact.session_id is not None and fact.session_id not in facts.last_records:
            continue
        row = message_row(
            fact.message, tenant=command.tenant, source=fact.source, part=0, now=facts.now,
            session_id=fact.session_id,
        )  # fmt: skip
        changes.append(OutboxAdded(row))
    return Decision(True, tuple(changes))


def _may_be_erased(fact: Fact, facts: Facts) -> bool:
    """Whether a record was added since the text of a fact was read: erasing an item adds one."""
    if fact.session_id is None or fact.read_at_record is None:
        return False
    return facts.last_records.get(fact.session_id, 0) > fact.read_at_record


def claim_deliveries(
    command: cmd.ClaimDeliveries, facts: Facts
) -> Decision[tuple[OutboxRow, ...]]:  # fmt: skip
    """Mark due messages as being sent, before anything is sent."""
    claimed: list[OutboxRow] = []
    changes: list[Change] = []
    for row in facts.messages:
        if row.state == "sending" and row.owner == command.worker:
            claimed.append(row)  # claimed by this same command, whose reply was lost
            continue
        # The worker that was sending it died. The platform may have the message although its id was
        # never stored, so a second send may be a duplicate. With a known id it is edited, and a
        # repeated edit changes nothing.
        is_other = row.owner is not None and row.owner != command.worker
        is_doubtful = row.external_id is None and (row.state == "sending" or is_other)
        claimed_row = replace(
            row,
            state="sending",
            owner=command.worker,
            is_maybe_duplicate=row.is_maybe_duplicate or is_doubtful,
        )
        claimed.append(claimed_row)
        changes.append(OutboxSaved(claimed_row, row))
    return Decision(tuple(claimed), tuple(changes))


def settle_delivery(command: cmd.SettleDelivery, facts: Facts) -> Decision[OutboxRow | None]:
    """Record the result of sending a message: sent, to be retried, or given up."""
    row = facts.messages[0] if facts.messages else None
    if row is None or row.owner != command.worker or row.state != "sending":
        return Decision(row if command.again else None)
    saved = _settled(command, row, facts.now)
    changes: list[Change] = [OutboxSaved(saved, row)]
    if saved.state == "sent" and row.file_name:
        changes.append(OutboxFileDropped(row.id))
    if saved.state == "dead" and not _is_edited_request(row):
        changes.append(OutboxRestDropped(row.source, row.part, REST_ERROR, facts.now))
    return Decision(saved, tuple(changes))


def _is_edited_request(row: OutboxRow) -> bool:
    """Whether the failed message only edits an ended approval request; nothing depends on it."""
    return row.approval == APPROVAL_ENDED and row.external_id is not None


def _settled(command: cmd.SettleDelivery, row: OutboxRow, now: float) -> OutboxRow:
    error = command.error[:MAX_ERROR] if command.error else None
    if command.outcome == "sent":
        external_id = command.external_id or row.external_id
        if command.approval != row.approval:
            # The approval ended while the message was being sent: edit it at once.
            return replace(row, state="pending", owner=None, next_at=now, external_id=external_id)
        # The transcript has the text, so it is not stored twice. The text of an approval request is
        # kept, because it is edited when the approval ends.
        return replace(
            row, state="sent", text=row.text if row.is_request else "", owner=None, settled_at=now,
            error=None, external_id=external_id,
        )  # fmt: skip
    refusals = row.refusals + (command.outcome == "refused")
    is_expired = now - row.created_at >= command.expire_seconds
    if command.outcome == "impossible" or refusals >= command.max_refusals or is_expired:
        return replace(
            row, state="dead", owner=None, settled_at=now, error=error, refusals=refusals
        )
    is_doubtful = command.is_uncertain and row.external_id is None
    return replace(
        row,
        state="pending",
        owner=None,
        error=error,
        refusals=refusals,
        next_at=now + command.delay_seconds,
        is_maybe_duplicate=row.is_maybe_duplicate or is_doubtful,
    )


def revise_delivery(command: cmd.ReviseDelivery, facts: Facts) -> Decision[OutboxRow]:
    """Apply an operator's decision about a message: retry or drop it."""
    row = facts.messages[0] if facts.messages else None
    if row is None:
        return refuse(MessageNotFound(f"no message {command.id}"))
    if command.action == "drop":
        if row.state in ("sent", "dropped"):
            return Decision(row)
        if row.state == "sending":
            return refuse(MessageSettled(f"message {row.id} is being sent; try again"))
        saved = replace(row, state="dropped", text="", owner=None, settled_at=facts.now)
        dropped: tuple[Change, ...] = (OutboxFileDropped(row.id),) if row.file_name else ()
        return Decision(saved, (OutboxSaved(saved, row), *dropped))
    if row.state == "pending" and command.again:
        return Decision(row)
    if row.state != "dead":
        return refuse(
            MessageSettled(f"message {row.id} is {row.state}; only dead ones are retried")
        )
    saved = replace(
        row, state="pending", refusals=0, next_at=facts.now, created_at=facts.now, settled_at=None
    )
    return Decision(saved, (OutboxSaved(saved, row),))


def prune_outbox(command: cmd.PruneOutbox, facts: Facts) -> Decision[bool]:
    """Delete messages that were settled long ago."""
    return Decision(False, (OutboxPruned(facts.now - command.older_than_seconds),))
