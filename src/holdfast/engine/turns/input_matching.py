"""Matches the input of a request with the log: what is new, rewound or repeated."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from holdfast.core.decisions.lane import unpack_items
from holdfast.core.history.diff import (
    ASSISTANT,
    HistoryDiff,
    LogEntry,
    SentItem,
    find_first_again,
    find_new,
    find_new_near_end,
    has_output,
    mark_unshown,
    sort_outputs,
)
from holdfast.core.history.history_hash import (
    EMPTY_HISTORY,
    HistoryHashRow,
    PrefixHash,
    history_hashes,
)
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.gateway_items import APPROVAL_PREFIX
from holdfast.core.model.items import NewItem, comparable_text, item_value, read_role
from holdfast.core.model.session import Session, read_pending_calls
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS
from holdfast.core.model.turn import Turn
from holdfast.core.openai.chat import INSTRUCTION_ROLES, text_of
from holdfast.engine.turns.in_flight import Meeting, SameRequest
from holdfast.ports.store import ItemQuery, Outline, OutlineEntry, Reader, SessionView

TAIL_ITEMS = 16
"""How many items of a log are read first, in addition to twice the items of the request."""
MeetRun = Callable[[Session], Awaitable[Meeting]]
"""Decides about a request that finds a run in its session."""
COMPARED_ROLES = frozenset({ASSISTANT, *INSTRUCTION_ROLES})
"""Roles of messages that are compared with the log; a single message of any other is new."""
SEARCHED_TURNS = 100
"""How many of a session's last turns are searched for queued tool outputs."""


INLINE_ITEMS = 500
"""How many items are compared on the event loop; more are compared in a thread."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Content(msgspec.Struct):
    content: Any = None


_read_content = msgspec.json.Decoder(_Content).decode


class MatchedInput(msgspec.Struct, frozen=True):
    """The new part of a request, and its relation to the log."""

    items: tuple[NewItem, ...]
    rewind: tuple[int, int] | None = None
    seen_seq: int | None = None
    """The end of the log with which the request was compared, if it was."""
    brought: PrefixHash | None = None
    """The history at the beginning of `items`, if none of it is stored."""
    repeated: HistoryHashRow | None = None
    """The end of the stored history that `items` continue."""
    history_hash: bytes = EMPTY_HISTORY
    """The hash of everything that was sent, if later requests may look for its answer."""
    same_as: tuple[TurnId, int] | None = None
    """The turn and step that already got the same tool outputs."""
    after_turn: int | None = None
    """The number of the session's last turn, if another turn would change the match."""
    abandons: TurnId | None = None
    """The turn whose tool calls the request contains without their outputs."""
    supersedes: TurnId | None = None
    """The turn in flight, which the request was not compared with and takes the place of."""
    lacking: tuple[str, ...] = ()
    """The calls that a turn waits for, and whose outputs the request lacks, if it has others."""
    is_history: bool = False
    """Whether the request has a history that the log knows."""


async def _compute(
    count: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a pure function; in a thread if there is much to do, so that the event loop is free."""
    if count <= INLINE_ITEMS:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def match_input(
    read: Reader,
    tenant: Tenant,
    items: Sequence[NewItem],
    *,
    key: Key | None = None,
    session_id: SessionId | None = None,
    is_whole: bool = False,
    meet: MeetRun | None = None,
) -> MatchedInput:
    """Compare a request with the settled log of its session.

    System and developer messages at the beginning are compared separately. Input without model
    output is new, unless the client is known to send its whole history (`is_whole`) or the input
    repeats what was refused or failed before.
    """
    lead = _leading_instructions(items)
    items = items[len(lead) :]
    sent = await _compute(len(items), _sent_items, items)
    is_history = is_whole or any(item.is_model_output for item in sent)
    has_outputs = has_output(sent)
    if not (is_history or has_outputs or lead):
        view = await read.session(tenant, session_id=session_id, key=key)
        again = await _repeated_failure(read, view, items)
        if again is not None or view is None or not view.session.hidden_count:
            return again or MatchedInput(tuple(items))
    find = partial(read.outline, tenant, session_id=session_id, key=key)
    compared: _Compared | None = None
    if has_outputs:
        outline = await find()
    else:
        outline, compared = await _outline_to_compare(find, sent, is_whole=is_whole)
    if not is_history:
        matched = (
            await _match_outputs(read, outline, items, sent)
            if has_outputs
            else _match_refused(outline, items, sent)
        )
        return await _with_instructions(read, outline, matched, lead)
    cut_from, supersedes = None, None
    if outline is not None and meet is not None and _meets_turn(outline.session, sent):
        open_from, meeting = outline.open_from, await meet(outline.session)
        if isinstance(meeting, SameRequest):
            return MatchedInput((), same_as=(meeting.turn_id, meeting.step))
        if meeting == "superseded":
            outline, cut_from = await find(), open_from
        elif meeting == "rolled_back" and open_from is not None:
            supersedes = outline.session.active_turn_id
            outline = _without_open_turn(outline, open_from)
    if compared is None and outline is not None:
        count = len(sent) + len(outline.entries)
        compared = await _compute(count, _compare, outline, sent, cut_from, is_whole=is_whole)
    matched = await _match_history(read, outline, items, sent, compared, supersedes)
    return await _with_instructions(read, outline, matched, lead)


async def match_first_question(
    read: Reader,
    tenant: Tenant,
    items: Sequence[NewItem],
    is_asked_again: Callable[[Session], bool],
    *,
    key: Key | None = None,
    session_id: SessionId | None = None,
) -> MatchedInput | None:
    """Return the rewind of an idle session to its first question, if a request repeats that."""
    outline = await read.outline(tenant, session_id=session_id, key=key)
    if outline is None or outline.session.active_turn_id is not None:
        return None
    session, lead = outline.session, _leading_instructions(items)
    sent = await _compute(len(items), _sent_items, items[len(lead) :])
    diff = find_first_again(sent, _comparable_log(outline, None))
    if diff is None or not is_asked_again(session):
        return None
    matched = MatchedInput(
        (), diff.rewind, outline.settled_seq, after_turn=session.turn_count, is_history=True
    )
    return await _with_instructions(read, outline, matched, lead)


def _without_open_turn(outline: Outline, open_from: int) -> Outline:
    """Return the log without the turn in flight, which begins at `open_from`."""
    entries = [entry for entry in outline.entries if entry.seq < open_from]
    session = msgspec.structs.replace(outline.session, active_turn_id=None, active_run_id=None)
    return msgspec.structs.replace(
        outline, session=session, entries=entries, running=[], open_from=None
    )


def _meets_turn(session: Session, sent: Sequence[SentItem]) -> bool:
    """Whether a history conflicts with a turn in flight; outputs that it waits for do not."""
    if not session.is_held:
        return session.active_run_id is not None
    pending = set(read_pending_calls(session))
    return not any(item.is_output and item.call_id in pending for item in sent)


async def _repeated_failure(
    read: Reader, view: SessionView | None, items: Sequence[NewItem]
) -> MatchedInput | None:
    """Return the input with a rewind, if it repeats the input of a turn that has just failed."""
    turn = view.last_turn if view is not None else None
    if view is None or turn is None or turn.outcome != "failed" or not turn.is_retryable:
        return None
    session, first, last = view.session, turn.first_seq, turn.last_seq
    if first is None or last is None or last != session.head_seq or view.queued_turns:
        return None
    query = ItemQuery(after=first - 1, limit=len(items) + 1, view="log")
    stored = await read.items(session, query)
    stored_prints = [item.fingerprint for item in stored[: len(items)]]
    if stored_prints != [item.fingerprint for item in items]:
        return None
    rest = [_sent(item.as_new()) for item in stored[len(items) :]]
    if any(item.role is not None and item.role != ASSISTANT for item in rest):
        return None  # the failed turn had more input than this
    return MatchedInput(
        tuple(items), (first - 1, last), seen_seq=last, after_turn=session.turn_count
    )


def _leading_instructions(items: Sequence[NewItem]) -> list[NewItem]:
    """Return a request's leading system and developer messages, marked as instructions."""
    lead: list[NewItem] = []
    for item in items:
        if item.kind != "message" or read_role(item.body).role not in INSTRUCTION_ROLES:
            break
        lead.append(msgspec.structs.replace(item, is_instruction=True))
    return lead


async def _with_instructions(
    read: Reader, outline: Outline | None, matched: MatchedInput, lead: Sequence[NewItem]
) -> MatchedInput:
    """Add the instructions of a request to its new items, if they have changed.

    If a rewind hides the instructions in force, they are added again after it.
    """
    entries = [*outline.entries, *outline.running] if outline is not None else []
    current = [entry for entry in entries if entry.is_instruction]
    if matched.same_as is not None or not (lead or (current and matched.rewind)):
        return matched
    is_hidden = matched.rewind is not None and any(e.seq > matched.rewind[0] for e in current)
    # The turn in flight, and its instructions with it, may still be hidden: add them again.
    is_settled = outline is None or not any(entry.is_instruction for entry in outline.running)
    is_same = is_settled and [i.fingerprint for i in lead] == [e.fingerprint for e in current]
    if not is_hidden and (is_same or not lead):
        return matched
    if not lead and outline is not None:
        query = ItemQuery(after=current[0].seq - 1, limit=len(current), view="log")
        stored = await read.items(outline.session, query)
        lead = [msgspec.structs.replace(item.as_new(), is_instruction=True) for item in stored]
    seen, brought = matched.seen_seq, matched.brought
    if seen is None:
        seen = outline.settled_seq if outline is not None else 0
    if brought is not None:
        brought = PrefixHash(brought.count + len(lead), brought.history_hash)
    return msgspec.structs.replace(
        matched, items=(*lead, *matched.items), seen_seq=seen, brought=brought
    )


def _match_refused(
    outline: Outline | None, items: Sequence[NewItem], sent: Sequence[SentItem]
) -> MatchedInput:
    """Leave out refused input that a request without a history repeats."""
    entries = outline.entries if outline is not None else []
    log = [_entry(entry) for entry in entries if not entry.is_instruction]
    diff = find_new(sent, log)
    if outline is None or not diff.new_from:
        return MatchedInput(tuple(items))
    return MatchedInput(tuple(items[diff.new_from :]), seen_seq=outline.settled_seq)


async def _match_history(
    read: Reader,
    outline: Outline | None,
    items: Sequence[NewItem],
    sent: Sequence[SentItem],
    compared: "_Compared | None",
    supersedes: TurnId | None,
) -> MatchedInput:
    """Return the new part of a history that was compared with the log."""
    if outline is None or compared is None:
        _, hashes = await _compute(len(items), _history_hashes, items, sent)
        seen = outline.settled_seq if outline is not None else 0
        brought = next(reversed(hashes), None)
        return MatchedInput(tuple(items), seen_seq=seen, brought=brought, supersedes=supersedes)
    log, diff = compared
    is_again = diff.new_from == len(sent) or diff.new_upto is not None
    new = tuple(items[diff.new_from : diff.new_upto])
    if diff.rewind is not None and new and sent[diff.new_from].role == ASSISTANT:
        shown = text_of(_read_content(new[0].body).content)
        if await _is_cut(read, outline, log, diff.rewind[0], shown):
            new = (_incomplete(new[0]), *new[1:])
    return MatchedInput(
        new,
        diff.rewind,
        outline.settled_seq,
        # Another turn in between would take the place where the answer is to be regenerated.
        after_turn=outline.session.turn_count if is_again else None,
        abandons=_abandoned(outline, sent, diff.new_from),
        supersedes=supersedes,
        lacking=_lacking(outline, new),
        is_history=diff.new_from > 0,
    )


_Compared = tuple[Sequence[LogEntry], HistoryDiff]
"""The log with which a history was compared, and the result."""


def _compare(
    outline: Outline, sent: Sequence[SentItem], cut_from: int | None, *, is_whole: bool
) -> _Compared | None:
    """Compare a history with the log, unless that is empty; see `_comparable_log`."""
    log = _comparable_log(outline, cut_from)
    if not log:
        return None
    log = mark_unshown(log, sent)
    diff = find_new(sent, log, is_whole=is_whole, open_from=outline.open_from)
    if _replaces_calls(outline, sent, diff.new_from):
        # The turn ends with this request, so that it may hide what it replaces.
        diff = find_new(sent, log, is_whole=is_whole)
    return log, diff


async def _outline_to_compare(
    find: Callable[..., Awaitable[Outline | None]], sent: Sequence[SentItem], *, is_whole: bool
) -> tuple[Outline | None, _Compared | None]:
    """Return the end of a log if that is enough to match a request, else the whole log.

    The result of the comparison is returned too, unless the log has to be compared again.
    """
    outline = await find(last=2 * len(sent) + TAIL_ITEMS)
    if outline is None or outline.is_whole:
        return outline, None
    is_idle, count = outline.session.active_turn_id is None, len(outline.entries)
    if is_idle:
        tail = [_entry(entry) for entry in outline.entries if not entry.is_instruction]
        diff = await _compute(count, find_new_near_end, sent, tail, is_whole=is_whole)
        if diff is not None:
            is_shown = mark_unshown(tail, sent) == tail
            return outline, (tail, diff) if is_shown else None
    return await find(), None


def _comparable_log(outline: Outline, cut_from: int | None) -> Sequence[LogEntry]:
    """Return the log entries to compare a history with, including the turn in flight.

    The turn that begins at `cut_from` was superseded: whatever the history does not repeat of it,
    including its answer, is hidden.
    """
    entries = (*outline.entries, *outline.running)
    log = [_entry(entry) for entry in entries if not entry.is_instruction]
    if outline.session.active_run_id is not None:
        in_progress = LogEntry(outline.session.head_seq + 1, b"streaming", is_streaming=True)
        return [*log, in_progress]
    if cut_from is None:
        return log
    return [
        msgspec.structs.replace(entry, partial_text=None) if entry.seq >= cut_from else entry
        for entry in log
    ]


def _abandoned(outline: Outline, sent: Sequence[SentItem], new_from: int) -> TurnId | None:
    """Return the turn that waits for tools, if the request continues without their outputs."""
    session = outline.session
    if not session.is_held or new_from >= len(sent):
        return None
    pending = set(read_pending_calls(session))
    if any(item.call_id in pending for item in sent[new_from:]):
        return None
    is_known = any(item.call_id in pending for item in sent[:new_from])
    is_left = is_known or _replaces_calls(outline, sent, new_from)
    return session.active_turn_id if is_left else None


def _lacking(outline: Outline, items: Sequence[NewItem]) -> tuple[str, ...]:
    """Return the calls that get no output although others of the same answer do."""
    if not outline.session.is_held:
        return ()
    pending = read_pending_calls(outline.session)
    given = {item.call_id for item in items if item.kind in OUTPUT_KINDS}
    lacking = tuple(
        call_id for call_id in pending
        if call_id not in given and not call_id.startswith(APPROVAL_PREFIX)
    )  # fmt: skip
    return lacking if not given.isdisjoint(pending) else ()


def _replaces_calls(outline: Outline, sent: Sequence[SentItem], new_from: int) -> bool:
    """Whether a history has other words of the model in place of the calls that a turn waits for.

    Some clients write calls and outputs as text, or drop the calls and keep the text before them.
    An approval is requested in such text: it is no replacement.
    """
    session, open_from = outline.session, outline.open_from
    if not session.is_held or open_from is None or not 0 < new_from < len(sent):
        return False
    pending = set(read_pending_calls(session))
    if any(item.call_id in pending for item in sent):
        return False
    if any(call_id.startswith(APPROVAL_PREFIX) for call_id in pending):
        return False
    last = sent[new_from - 1]
    is_open = any(e.seq >= open_from and e.fingerprint == last.fingerprint for e in outline.entries)
    return is_open and (last.is_model_output or sent[new_from].is_model_output)


async def _is_cut(
    read: Reader, outline: Outline, log: Sequence[LogEntry], after: int, shown: str
) -> bool:
    """Whether a text is the shown part of the answer that follows an item of the log.

    The answer was shown up to there when its reader stopped it. The shown part of an incomplete
    answer may be longer than the stored one.
    """
    answer = next((entry for entry in log if entry.seq > after and entry.fingerprint), None)
    if answer is None or answer.kind != "message" or answer.is_refused:
        return False
    shown = comparable_text(shown).strip()
    if answer.partial_text is not None:
        stored = comparable_text(answer.partial_text).strip()
        return stored.startswith(shown) or shown.startswith(stored)
    query = ItemQuery(after=answer.seq - 1, limit=1, view="log")
    [item] = await read.items(outline.session, query)
    if read_role(item.body).role != ASSISTANT:
        return False
    stored = comparable_text(text_of(_read_content(item.body).content)).strip()
    return len(shown) < len(stored) and stored.startswith(shown)


def _incomplete(item: NewItem) -> NewItem:
    """Return an assistant's message marked as incomplete."""
    body = msgspec.json.encode({**item_value(item.body), "status": "incomplete"})
    return msgspec.structs.replace(item, body=body)


async def _match_outputs(
    read: Reader, outline: Outline | None, items: Sequence[NewItem], sent: Sequence[SentItem]
) -> MatchedInput:
    """Find the calls for the tool outputs of a request without a history."""
    if outline is None:
        sort_outputs(sent, ())
        return MatchedInput(tuple(items))
    repeated = _repeated_question(outline, sent)
    items, sent = items[repeated:], sent[repeated:]
    session = outline.session
    entries = (*outline.entries, *outline.running)
    log = [_entry(entry) for entry in entries if not entry.is_refused]
    queued = await _queued_outputs(read, session)
    log += [LogEntry(0, item.fingerprint, item.kind, call_id=item.call_id) for item in queued]
    outputs = sort_outputs(sent, log, is_growing=session.active_run_id is not None)
    same_as = None
    if outputs.given is not None and not outputs.new:
        stored_output = outputs.given
        turn = next(
            (t for item, t in queued.items() if item.call_id == stored_output.call_id), None
        )
        same_as = (turn.id, turn.step) if turn else await _receiver(read, session, stored_output)
    new = tuple(items[index] for index in outputs.new)
    return MatchedInput(
        new,
        seen_seq=outline.settled_seq,
        same_as=same_as,
        after_turn=session.turn_count,
        lacking=_lacking(outline, new),
    )


def _repeated_question(outline: Outline, sent: Sequence[SentItem]) -> int:
    """Return how many items before a request's outputs repeat the turn that waits for them.

    Some clients send the question again with each output: it is in the turn already.
    """
    first = next((at for at, item in enumerate(sent) if item.is_output), 0)
    if not first or not outline.session.is_held or outline.open_from is None:
        return 0
    pending = set(read_pending_calls(outline.session))
    if not any(item.is_output and item.call_id in pending for item in sent):
        return 0
    questions = [
        entry.fingerprint
        for entry in (*outline.entries, *outline.running)
        if entry.seq >= outline.open_from and not entry.is_instruction
    ]
    return first if questions[:first] == [item.fingerprint for item in sent[:first]] else 0


async def without_repeated_question(
    read: Reader, tenant: Tenant, session_id: SessionId, items: Sequence[NewItem]
) -> Sequence[NewItem]:
    """Return the input after a response, without a question that it repeats before outputs."""
    sent = _sent_items(items) if len(items) > 1 else []
    if not any(item.is_output for item in sent):
        return items
    outline = await read.outline(tenant, session_id=session_id)
    return items if outline is None else items[_repeated_question(outline, sent) :]


async def _queued_outputs(read: Reader, session: Session) -> dict[NewItem, Turn]:
    """Return the tool outputs in a session's queue, each with its turn."""
    if session.active_turn_id is None:
        return {}
    views = await read.turns(session.id, after=0, limit=SEARCHED_TURNS, order="desc")
    return {
        item: view.turn
        for view in reversed(views)
        if view.turn.is_open
        for item in unpack_items(view.turn.input)
        if _sent(item).is_output
    }


async def _receiver(read: Reader, session: Session, output: LogEntry) -> tuple[TurnId, int] | None:
    """Return the turn and step that got an output, or None if it has to be sent again."""
    query = ItemQuery(after=output.seq - 1, limit=1, view="log")
    item = (await read.items(session, query))[0]
    if item.session_id != session.id:
        return None
    turn = (await read.turns(session.id, after=item.turn_number - 1, limit=1))[0].turn
    if turn.outcome == "cancelled" or (turn.outcome == "failed" and not turn.is_retryable):
        return None
    runs = await read.runs(turn.id)
    return turn.id, min((run.step for run in runs if run.first_seq > output.seq), default=turn.step)


async def match_stored_history(
    read: Reader, tenant: Tenant, items: Sequence[NewItem]
) -> MatchedInput:
    """Find the longest stored history that a request without a session begins with."""
    history_hash, hashes = await _compute(len(items), _history_hashes, items)
    if not hashes:
        return MatchedInput(tuple(items), history_hash=history_hash)
    end = await read.find_history(tenant, [each.history_hash for each in reversed(hashes)])
    if end is None:
        return MatchedInput(tuple(items), brought=hashes[-1], history_hash=history_hash)
    count = next(each.count for each in hashes if each.history_hash == end.history_hash)
    return MatchedInput(tuple(items[count:]), repeated=end, history_hash=history_hash)


def _history_hashes(
    items: Sequence[NewItem], sent: Sequence[SentItem] | None = None
) -> tuple[bytes, list[PrefixHash]]:
    """Return the hash of a whole history, and those of its prefixes."""
    sent = _sent_items(items) if sent is None else sent
    return history_hashes(sent, [item.call_id for item in items])


def _sent_items(items: Sequence[NewItem]) -> list[SentItem]:
    return [_sent(item) for item in items]


def _sent(item: NewItem) -> SentItem:
    if item.kind != "message":
        return SentItem(item.fingerprint, item.kind, call_id=item.call_id)
    return SentItem(item.fingerprint, item.kind, read_role(item.body).role)


def _entry(entry: OutlineEntry) -> LogEntry:
    partial_text = None
    if entry.torn_body is not None:
        partial_text = text_of(_read_content(entry.torn_body).content)
    return LogEntry(
        entry.seq, entry.fingerprint, entry.kind, partial_text, entry.call_id, entry.is_refused,
        is_joined=entry.is_joined,
    )  # fmt: skip
