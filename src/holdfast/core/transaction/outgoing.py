"""Messages that a decision writes to the outbox, in the commit of what they are about."""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.delivery import (
    Delivery,
    OutboxMessage,
    OutboxRow,
    OutboxState,
    first_part,
    outbox_id,
)
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import find_request
from holdfast.core.model.turn import Outcome, Turn
from holdfast.core.transaction.changes import OutboxAdded, PlaceholderStopped
from holdfast.core.transaction.session_draft import Draft

MAX_STOPPED_CHARACTERS = 1500
"""How much of an unfinished answer stays in its message; it must fit on every platform."""
STOPPED = "(stopped)"
FAILED = "Sorry, this message could not be answered ({turn_id})."


class _Part(msgspec.Struct):
    text: str = ""
    refusal: str = ""


class _Message(msgspec.Struct):
    type: str = ""
    role: str = ""
    content: list[_Part] | str = ""


_read_message = msgspec.json.Decoder(_Message).decode


def message_row(
    message: OutboxMessage,
    *,
    tenant: Tenant,
    source: str,
    part: int,
    now: float,
    session_id: SessionId | None = None,
    state: OutboxState = "pending",
) -> OutboxRow:
    """Return the row of a new message."""
    return OutboxRow(
        id=outbox_id(source, part), tenant=tenant, channel=message.channel, chat=message.chat,
        thread=message.thread, source=source, part=part, session_id=session_id, state=state,
        text=message.text, reply_to=message.reply_to, refusals=0, next_at=now, created_at=now,
        owner=None, external_id=None, is_maybe_duplicate=False, error=None, settled_at=None,
        approval=message.approval,
    )  # fmt: skip


def queue_parts(
    draft: Draft, messages: Iterable[OutboxMessage], source: str, step: int = 0
) -> None:
    """Have messages sent, in order, on behalf of a turn or record of the draft's session."""
    session = draft.before
    for part, message in enumerate(messages, first_part(step)):
        row = message_row(
            message, tenant=session.tenant, source=source, part=part, now=draft.now,
            session_id=session.id,
        )  # fmt: skip
        draft.add(OutboxAdded(row))


def report_end(draft: Draft, turn: Turn, outcome: Outcome, partial: Sequence[NewItem]) -> None:
    """Tell the person that a turn of a channel ended without an answer."""
    delivery = delivery_of(turn)
    if delivery is None:
        return
    if outcome == "cancelled":
        # Only a turn that had begun to answer has something to correct in the chat.
        text = f"{_cut(output_text(item.body for item in partial))}\n\n{STOPPED}".strip()
        placeholder = outbox_id(turn.id, first_part(turn.step))
        draft.add(PlaceholderStopped(placeholder, text, draft.now))
        return
    if outcome == "interrupted" and turn.is_retryable:
        return
    message = to_message(delivery, FAILED.format(turn_id=turn.id))
    queue_parts(draft, [message], turn.id, turn.step)


def delivery_of(turn: Turn) -> Delivery | None:
    """Return where the turn's answer goes, if it goes to a channel."""
    request = find_request(turn.request)
    return request.delivery if request is not None else None


def to_message(delivery: Delivery, text: str) -> OutboxMessage:
    """Return a text as a message to where a turn's answer goes."""
    return OutboxMessage(
        channel=delivery.channel,
        chat=delivery.chat,
        thread=delivery.thread,
        text=text,
        reply_to=delivery.reply_to,
    )


def output_text(bodies: Iterable[bytes]) -> str:
    """Return the text of an answer's messages."""
    return _message_text(bodies, ("assistant", ""))


def input_text(bodies: Iterable[bytes]) -> str:
    """Return the text of a user's messages."""
    return _message_text(bodies, ("user",))


def _message_text(bodies: Iterable[bytes], roles: Sequence[str]) -> str:
    texts: list[str] = []
    for body in bodies:
        try:
            message = _read_message(body)
        except msgspec.DecodeError:
            continue  # an item of another type, or one that somebody else understands
        if message.type not in ("message", "") or message.role not in roles:
            continue
        if isinstance(message.content, str):
            texts.append(message.content)
        else:
            texts += [part.text or part.refusal for part in message.content]
    return "\n\n".join(text for text in texts if text.strip())


def _cut(text: str) -> str:
    return text if len(text) <= MAX_STOPPED_CHARACTERS else text[:MAX_STOPPED_CHARACTERS] + "…"
