"""Messages that a decision writes to the outbox, in the commit that causes them."""

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
"""How much of an unfinished answer its message keeps; it must fit on every platform."""
STOPPED = "(stopped)"
FILES_FOLLOW = "(see below)"
MAX_FILES = 10
"""The most files of one answer."""
IMAGE_CALL = "image_generation_call"
_IMAGE_MARK = IMAGE_CALL.encode()
UNANSWERED = "Nobody answered in time; the call was not run."
WITHDRAWN = "Not needed any more; the call was not run."
MAX_NOTE = 64
"""The longest name or reason in a note: a request and its note must fit in one message."""
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
    """Return the row of a new message, without NULs, which PostgreSQL cannot store."""
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
    """Return the changes that add a message and its file, if it has one."""
    if message.file is None:
        return [OutboxAdded(row)]
    return [OutboxAdded(row), OutboxFileAdded(row.id, message.file.content)]


def queue_parts(
    draft: Draft, messages: Iterable[OutboxMessage], source: str, step: int = 0
) -> None:
    """Add messages to the outbox, in order, for a turn or record of the draft's session.

    A placeholder is edited to become the first part, so that part is always a text. Messages with a
    source of their own are numbered separately.
    """
    session, first, parts = draft.before, first_part(step), list(messages)
    if parts and parts[0].file is not None:
        draft.add(PlaceholderStopped(outbox_id(source, first), FILES_FOLLOW, draft.now))
        first += 1
    numbers = {source: first}
    for message in parts:
        owner = message.source or source
        part = numbers.get(owner, first_part(step))
        numbers[owner] = part + 1
        row = message_row(
            message, tenant=session.tenant, source=owner, part=part, now=draft.now,
            session_id=session.id,
        )  # fmt: skip
        for change in message_changes(row, message):
            draft.add(change)


def report_end(draft: Draft, turn: Turn, outcome: Outcome, partial: Sequence[NewItem]) -> None:
    """Report in the chat that a channel's turn ended without an answer."""
    delivery = delivery_of(turn)
    if delivery is None:
        return
    if outcome == "cancelled":
        # Only a turn that has shown a part of its answer needs a correction in the chat.
        text = f"{_cut(output_text(item.body for item in partial))}\n\n{STOPPED}".strip()
        placeholder = outbox_id(turn.id, first_part(turn.step))
        draft.add(PlaceholderStopped(placeholder, text, draft.now))
        return
    if outcome == "interrupted" and turn.is_retryable:
        return
    message = to_message(delivery, FAILED.format(turn_id=turn.id))
    session = draft.before
    # The messages of a held turn's step were sent already: use the numbers of the next step.
    is_held = session.active_turn_id == turn.id and session.is_held
    queue_parts(draft, [message], turn.id, turn.step + is_held)


def report_approvals(draft: Draft, turn: Turn, items: Iterable[NewItem]) -> None:
    """Add a note to the approval requests that were answered: the answer, and by whom."""
    answers = [_read_approval(item.body) for item in items if item.kind == APPROVAL]
    if answers and delivery_of(turn) is not None:
        for answer in answers:
            draft.add(ApprovalEnded(answer.call_id, f"\n\n{_describe(answer)}", draft.now))


def _describe(answer: GatewayApproval) -> str:
    word = "Allowed" if answer.approve else "Denied"
    if answer.name:
        name = "".join(char for char in answer.name if char not in _MARKUP)
        return f"{word} by {' '.join(name.split())[:MAX_NOTE]}."
    return f"{word}: {answer.reason[:MAX_NOTE]}." if answer.reason else f"{word}."


def withdraw_approvals(draft: Draft, turn: Turn, *, is_late: bool) -> None:
    """Add a note to the approval requests of a held turn that are no longer needed."""
    if not draft.before.pending_calls or delivery_of(turn) is None:
        return
    note = UNANSWERED if is_late else WITHDRAWN
    for call_id in read_pending_calls(draft.before):
        if call_id.startswith(APPROVAL_PREFIX):
            draft.add(ApprovalEnded(call_id, f"\n\n{note}", draft.now))


def delivery_of(turn: Turn) -> Delivery | None:
    """Return where the turn's answer is sent, or None if it has no channel."""
    request = find_request(turn.request)
    return request.delivery if request is not None else None


def to_message(delivery: Delivery, text: str) -> OutboxMessage:
    """Return a text as a message to the conversation of a delivery."""
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
            continue  # an item of another type, or one in an unknown format
        if message.type not in ("message", "") or message.role not in roles:
            continue
        if isinstance(message.content, str):
            texts.append(message.content)
        else:
            texts += [part.text or part.refusal for part in message.content]
    return "\n\n".join(text for text in texts if text.strip())


def output_files(bodies: Iterable[bytes]) -> list[OutboxFile]:
    """Return the images of an answer, in order."""
    files: list[OutboxFile] = []
    for body in bodies:
        if _IMAGE_MARK not in body:
            continue  # fast path: most items contain no image and are not parsed
        image = _read_image(body)
        if image is not None:
            number = f"-{len(files) + 1}" if files else ""
            kind = image[1]
            name = f"image{number}.{'jpg' if kind == 'jpeg' else kind}"
            files.append(OutboxFile(name=name, media_type=f"image/{kind}", content=image[0]))
    return files


def _read_image(body: bytes) -> tuple[bytes, str] | None:
    try:
        call = _read_image_call(body)
        content = base64.b64decode(call.result or "", validate=True)
    except (msgspec.DecodeError, binascii.Error):
        return None  # an item of another type, or an invalid image
    kind = (call.output_format or "png").lower()
    if call.type != IMAGE_CALL or not content:
        return None
    return content, kind if kind in ("png", "jpeg", "webp") else "png"


def bound_files(
    files: Sequence[OutboxFile], max_bytes: int, sent: Sequence[OutboxFile] = ()
) -> tuple[list[OutboxFile], list[str]]:
    """Return the files that may be sent, and a line of text for each that may not.

    Files of the same turn that were `sent` before count towards the limits.
    """
    kept: list[OutboxFile] = []
    notes: list[str] = []
    bytes_left = max_bytes - sum(len(file.content) for file in sent)
    for file in files:
        size = len(file.content)
        if max_bytes <= 0:
            reason = "files are not sent here"
        elif len(sent) + len(kept) >= MAX_FILES:
            reason = f"an answer may have {MAX_FILES} files"
        elif size > bytes_left:
            reason = f"it has {size:,} bytes, and the files of an answer may have {max_bytes:,}"
        else:
            kept.append(file)
            bytes_left -= size
            continue
        notes.append(f"[The file {file.name} is not sent: {reason}.]")
    return kept, notes


def _cut(text: str) -> str:
    return text if len(text) <= MAX_STOPPED_CHARACTERS else text[:MAX_STOPPED_CHARACTERS] + "…"
