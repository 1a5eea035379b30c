"""Convert facts of the log to the messages of webhooks."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.core.ids import Tenant
from holdfast.core.model.delivery import Fact, OutboxMessage
from holdfast.core.model.items import StoredItem
from holdfast.core.transaction.changes import Event
from holdfast.core.transaction.outgoing import input_text, output_text
from holdfast.webhooks.settings import WebhookSettings

MAX_TEXT_CHARACTERS = 64 * 1024
PAUSED = "schedule.paused"


class TurnTexts(NamedTuple):
    """The texts of a turn's items as fields of a message."""

    fields: Mapping[str, str]
    read_at_record: int | None
    """The session's last record when they were read."""


NO_TEXTS = TurnTexts({}, None)


def event_name(event: Event) -> str:
    """Return the name under which an event is sent; a new generation is a reset."""
    if event.kind == "session.created" and b'"previous_session_id"' in event.body:
        return "session.reset"
    return event.kind


def is_wanted(settings: WebhookSettings, event: Event, key: str | None) -> bool:
    """Whether a webhook receives an event of a session with this key."""
    if event_name(event) not in settings.events or settings.tenant != event.tenant:
        return False
    return (key or "").startswith(settings.key_prefix)


def event_fact(settings: WebhookSettings, event: Event, key: str | None, texts: TurnTexts) -> Fact:
    """Return an event as a message; facts of one key are sent in order, across its generations."""
    data = {
        "session_id": event.session_id,
        "key": key,
        "turn_id": event.turn_id,
        "number": event.no,
        **msgspec.json.decode(event.body),
        **texts.fields,
    }
    session = event.session_id.partition("_")[2]
    return Fact(
        source=f"evt_{session}-{event.no}-{settings.name}",
        message=_message(
            settings, event_name(event), event.at, data, order=key or event.session_id
        ),
        session_id=event.session_id,
        read_at_record=texts.read_at_record,
    )


def paused_message(
    settings: WebhookSettings, tenant: Tenant, schedule: str, reason: str, at: float
) -> OutboxMessage | None:
    """Return the message that a schedule was paused, or None if the webhook does not want it."""
    if PAUSED not in settings.events or settings.tenant != tenant or settings.key_prefix:
        return None
    data = {"schedule": schedule, "reason": reason}
    return _message(settings, PAUSED, at, data, order=f"schedule:{schedule}")


def _message(
    settings: WebhookSettings, name: str, at: float, data: Mapping[str, Any], *, order: str
) -> OutboxMessage:
    timestamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    payload = {"type": name, "timestamp": timestamp.replace("+00:00", "Z"), "data": data}
    return OutboxMessage(
        channel=settings.channel, chat=order, text=msgspec.json.encode(payload).decode()
    )


def turn_texts(items: list[StoredItem], last_record: int) -> TurnTexts:
    """Return the input and output of a turn as text of bounded length."""
    bodies = [item.body for item in items]
    fields = {
        "input_text": input_text(bodies)[:MAX_TEXT_CHARACTERS],
        "output_text": output_text(bodies)[:MAX_TEXT_CHARACTERS],
    }
    return TurnTexts(fields, last_record)
