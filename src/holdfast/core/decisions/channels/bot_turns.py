"""How many turns bots have in a chat before a person must write."""

import msgspec

from holdfast.core.model.channels import BotTurnsRow
from holdfast.core.transaction.changes import BotTurnsDropped, BotTurnsSaved, Decision
from holdfast.core.transaction.commands import CountBotTurn, ForgetBotTurns
from holdfast.core.transaction.facts import Facts


def count_bot_turn(command: CountBotTurn, facts: Facts) -> Decision[bool]:
    """Count a message of a bot; one that is delivered twice counts once."""
    known = facts.bot_turns
    counted = msgspec.json.decode(known.messages, type=list[str]) if known is not None else []
    if command.message in counted:
        return Decision(True)
    if len(counted) >= command.limit:
        return Decision(False)
    messages = msgspec.json.encode([*counted, command.message]).decode()
    row = BotTurnsRow(command.channel, command.chat, messages)
    return Decision(True, (BotTurnsSaved(row, known),))


def forget_bot_turns(command: ForgetBotTurns, facts: Facts) -> Decision[None]:
    """Reset the count; write nothing if no bot had a turn."""
    if facts.bot_turns is None:
        return Decision(None)
    return Decision(None, (BotTurnsDropped(command.channel, command.chat),))
