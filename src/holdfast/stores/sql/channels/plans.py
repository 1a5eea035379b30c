"""Commands about channels: their facts and decisions."""

from typing import Any

from holdfast.core.decisions.channels import access, bot_turns, edits, outbox, receivers, stop
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command
from holdfast.stores.sql.channels import facts

DECIDED: dict[type[Command[Any]], tuple[Any, Any]] = {
    cmd.OpenPlaceholder: (facts.placeholder_facts, outbox.open_placeholder),
    cmd.KeepPlaceholder: (facts.message_facts, outbox.keep_placeholder),
    cmd.QueueMessages: (facts.queue_facts, outbox.queue_messages),
    cmd.QueueFacts: (facts.cursor_facts, outbox.queue_facts),
    cmd.ClaimDeliveries: (facts.due_facts, outbox.claim_deliveries),
    cmd.SettleDelivery: (facts.message_facts, outbox.settle_delivery),
    cmd.ReviseDelivery: (facts.message_facts, outbox.revise_delivery),
    cmd.PruneOutbox: (facts.no_facts, outbox.prune_outbox),
    cmd.StopTurns: (facts.stop_facts, stop.stop_turns),
    cmd.EditWaiting: (facts.edit_facts, edits.edit_waiting),
    cmd.RequestPairing: (facts.pairing_facts, access.request_pairing),
    cmd.ApprovePairing: (facts.pairing_facts, access.approve_pairing),
    cmd.RevokePairing: (facts.pairing_facts, access.revoke_pairing),
    cmd.HoldChannel: (facts.hold_facts, access.hold_channel),
    cmd.ReleaseChannel: (facts.no_facts, access.release_channel),
    cmd.RememberChat: (facts.no_facts, access.remember_chat),
    cmd.DeadLetterUpdate: (facts.no_facts, access.dead_letter_update),
    cmd.NoteReceiver: (facts.receiver_facts, receivers.note_receiver),
    cmd.CountBotTurn: (facts.bot_turn_facts, bot_turns.count_bot_turn),
    cmd.ForgetBotTurns: (facts.bot_turn_facts, bot_turns.forget_bot_turns),
}
