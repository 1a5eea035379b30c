"""Messages that a decision writes to the outbox, in the commit of what they are about."""

import base64
import binascii
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.delivery import (
    Delivery,
    OutboxFile,
    OutboxMessage,
    OutboxRow,
    OutboxState,
    first_part,
    outbox_id,
)
from holdfast.core.model.gateway_items import APPROVAL, APPROVAL_PREFIX, GatewayApproval
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import find_request
from holdfast.core.model.session import read_pending_calls
from holdfast.core.model.turn import Outcome, Turn
from holdfast.core.transaction.changes import (
    ApprovalEnded,
    Change,
    OutboxAdded,
    OutboxFileAdded,
    PlaceholderStopped,
)
from holdfast.core.transaction.session_draft import Draft

MAX_STOPPED_CHARACTERS = 1500
"""How much of an unfinished answer stays in its message; it must fit on every platform."""
STOPPED = "(stopped)"
FILES_FOLLOW = "(see below)"
MAX_FILES = 10
"""Files of one answer."""
IMAGE_CALL = "image_generation_call"
_IMAGE_MARK = IMAGE_CALL.encode()
UNANSWERED = "Nobody answered in time; the call was not run."
WITHDRAWN = "Not needed any more; the call was not run."
MAX_NOTE = 64
"""Characters of a name or a reason in a note: a request and its note must fit in one message."""
_MARKUP = frozenset("*_`~[]()<>|\\#")
FAILED = "Sorry, this message could not be answered ({turn_id})."


class _Part(msgspec.Struct):
    text: str = ""
    refusal: str = ""


class _Message(msgspec.Struct):
    type: str = ""
    role: str = ""
    content: list[_Part] | str = ""


_read_message = msgspec.json.Decoder(_Message).decode


class _ImageCall(msgspec.Struct):
    type: str
    result: str | None = None
    output_format: str | None = None


_read_approval = msgspec.json.Decoder(GatewayApproval).decode
_read_image_call = msgspec.json.Decoder(_ImageCall).decode


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
    """Return the row of a new message; PostgreSQL stores no NUL in a text."""
    text = message.text.replace("\0", "\ufffd")
    return OutboxRow(
        id=outbox_id(source, part), tenant=tenant, channel=message.channel, chat=message.chat,
        thread=message.thread, source=source, part=part, session_id=session_id, state=state,
        text=text, reply_to=message.reply_to, refusals=0, next_at=now, created_at=now,
        owner=None, external_id=None, is_maybe_duplicate=False, error=None, settled_at=None,
        approval=message.approval, file_name=message.file.name if message.file else "",
        file_type=message.file.media_type if message.file else "",
    )  # fmt: skip


def message_changes(row: OutboxRow, message: OutboxMessage) -> list[Change]:
    """Return what writes a new message, and the file that it is."""
    if message.file is None:
        return [OutboxAdded(row)]
    return [OutboxAdded(row), OutboxFileAdded(row.id, message.file.content)]


def queue_parts(
    draft: Draft, messages: Iterable[OutboxMessage], source: str, step: int = 0
) -> None:
    """Have messages sent, in order, on behalf of a turn or record of the draft's session.

    The first part is the one that a placeholder is edited to: it is always a text. Messages with
    a source of their own are numbered apart.
    """
    session, first, parts = draft.before, first_part(step), list(messages)
    if parts and parts[0].file is not None:
        draft.add(PlaceholderStopped(outbox_id(source, first), FILES_FOLLOW, draft.now))
        first += 1
    numbers = {source: first}
    for message in parts:
        owner = message.source or source
        part = numbers.get(owner, 0)
        numbers[owner] = part + 1
        row = message_row(
            message, tenant=session.tenant, source=owner, part=part, now=draft.now,
            session_id=session.id,
        )  # fmt: skip
        for change in message_changes(row, message):
            draft.add(change)


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
    session = draft.before
    # A held turn has answered its step already: those messages stay.
    is_held = session.active_turn_id == turn.id and session.is_held
    queue_parts(draft, [message], turn.id, turn.step + is_held)


def report_approvals(draft: Draft, turn: Turn, items: Iterable[NewItem]) -> None:
    """Note in the chats which approval requests of a turn were answered, and by whom."""
    answers = [_read_approval(item.body) for item in items if item.kind == APPROVAL]
    if answers and delivery_of(turn) is not None:
        for answer in answers:
            draft.add(ApprovalEnded(answer.call_id, f"\n\n{_describe(answer)}", draft.now))


def _describe(answer: GatewayApproval) -> str:
    word = "Allowed" if answer.approve else "Denied"
    if answer.name:
        name = "".join(one for one in answer.name if one not in _MARKUP)
        return f"{word} by {' '.join(name.split())[:MAX_NOTE]}."
    return f"{word}: {answer.reason[:MAX_NOTE]}." if answer.reason else f"{word}."


def withdraw_approvals(draft: Draft, turn: Turn, *, is_late: bool) -> None:
    """Note in the chats that the approvals for which a turn holds its lane are needed no more."""
    if not draft.before.pending_calls or delivery_of(turn) is None:
        return
    note = UNANSWERED if is_late else WITHDRAWN
    for call_id in read_pending_calls(draft.before):
        if call_id.startswith(APPROVAL_PREFIX):
            draft.add(ApprovalEnded(call_id, f"\n\n{note}", draft.now))


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


def output_files(bodies: Iterable[bytes]) -> list[OutboxFile]:
    """Return the images that an answer has, in their order."""
    found: list[OutboxFile] = []
    for body in bodies:
        if _IMAGE_MARK not in body:
            continue  # most answers have none: nothing is parsed for them
        image = _read_image(body)
        if image is not None:
            number = f"-{len(found) + 1}" if found else ""
            kind = image[1]
            name = f"image{number}.{'jpg' if kind == 'jpeg' else kind}"
            found.append(OutboxFile(name=name, media_type=f"image/{kind}", content=image[0]))
    return found


def _read_image(body: bytes) -> tuple[bytes, str] | None:
    try:
        call = _read_image_call(body)
        content = base64.b64decode(call.result or "", validate=True)
    except (msgspec.DecodeError, binascii.Error):
        return None  # an item of another type, or a picture that nobody can show
    kind = (call.output_format or "png").lower()
    if call.type != IMAGE_CALL or not content:
        return None
    return content, kind if kind in ("png", "jpeg", "webp") else "png"


def bound_files(
    files: Sequence[OutboxFile], max_bytes: int, sent: Sequence[OutboxFile] = ()
) -> tuple[list[OutboxFile], list[str]]:
    """Return the files that may be sent, and a line for each that may not.

    Those of the same turn that are `sent` already count as well.
    """
    kept: list[OutboxFile] = []
    notes: list[str] = []
    left = max_bytes - sum(len(file.content) for file in sent)
    for file in files:
        size = len(file.content)
        if max_bytes <= 0:
            reason = "files are not sent here"
        elif len(sent) + len(kept) >= MAX_FILES:
            reason = f"an answer may have {MAX_FILES} files"
        elif size > left:
            reason = f"it has {size:,} bytes, and the files of an answer may have {max_bytes:,}"
        else:
            kept.append(file)
            left -= size
            continue
        notes.append(f"[The file {file.name} is not sent: {reason}.]")
    return kept, notes


def _cut(text: str) -> str:
    return text if len(text) <= MAX_STOPPED_CHARACTERS else text[:MAX_STOPPED_CHARACTERS] + "…"
