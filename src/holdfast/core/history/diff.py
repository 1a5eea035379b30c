"""Finds the new part of a request whose client may send its whole history each time.

The client's items are compared with the log by fingerprint, never with a compacted projection.
What is recognized is not stored twice; an edit or a regenerate becomes a rewind record, and the
items that it hides stay readable.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput
from holdfast.core.model.gateway_items import ATTACHMENT, CALL, COMPLETION, WORDS
from holdfast.core.model.items import OUTPUT_SUFFIX, message
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS, OUTPUT_OF

NO_FINGERPRINT = b""
ASSISTANT = "assistant"
BLANK_ANSWER = message(ASSISTANT, "").fingerprint
"""The fingerprint of an assistant's message of white space, which many clients drop."""
CALL_SUFFIX = "_call"
OTHER_MODEL_KINDS = frozenset({"mcp_approval_request", "compaction"})
"""Kinds, other than calls, that only a model's server creates."""
_UNSEEN_KINDS = frozenset({CALL, WORDS, ATTACHMENT})
"""Kinds that a client is not shown, or not as items of their own."""
MAX_MATCHES = 256
"""How many candidate matches of one request are tracked at the same time."""


class SentItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a request."""

    fingerprint: bytes
    kind: str
    role: str | None = None
    call_id: str | None = None

    @property
    def is_output(self) -> bool:
        """Whether it is the output of a client's tool."""
        return self.kind in OUTPUT_KINDS and self.call_id is not None

    @property
    def is_model_output(self) -> bool:
        """Whether a model produced it, which means that the client repeats a history.

        Items that cannot be compared, such as reasoning, do not count.
        """
        if self.fingerprint == NO_FINGERPRINT:
            return False
        is_made = self.kind.endswith(CALL_SUFFIX) or self.kind in OTHER_MODEL_KINDS
        return self.role == ASSISTANT or is_made


def has_output(sent: Sequence[SentItem]) -> bool:
    """Whether a request contains the output of a client's tool."""
    kinds = {item.kind for item in sent}
    return not kinds.isdisjoint(OUTPUT_KINDS) and any(item.is_output for item in sent)


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One item of the log that a client may have in its history."""

    seq: int
    fingerprint: bytes
    kind: str = "message"
    partial_text: str | None = None
    """The text of an incomplete answer."""
    call_id: str | None = None
    is_refused: bool = False
    """Whether it is hidden from the model because its provider refused it."""
    is_unshown: bool = False
    """Whether the client may not have seen it: text between tool steps."""
    is_joined: bool = False
    """Whether it is a message that may have joined its turn from another client."""
    is_streaming: bool = False
    """Whether it stands for an answer in progress, any part of which may have been shown."""

    @property
    def is_optional(self) -> bool:
        """Whether a client's history may lack it: refused, unseen or incomplete."""
        return (
            self.is_refused or self.is_unshown or self.is_streaming or self.partial_text is not None
        )


class HistoryDiff(msgspec.Struct, frozen=True):
    """The request's items from `new_from` on are new; `rewind` hides what they replace."""

    new_from: int
    rewind: tuple[int, int] | None = None
    new_upto: int | None = None
    """Where the new items end; what follows is an answer that is to be regenerated."""


def find_new(
    sent: Sequence[SentItem],
    log: Sequence[LogEntry],
    *,
    is_whole: bool = False,
    open_from: int | None = None,
) -> HistoryDiff:
    """Compare a request with the log of the turns that were complete when it arrived.

    (a) No model output in the request: all of it is new, unless it repeats refused input.
    (b) A prefix of the request matches the end of the log: the rest is new. (c) A prefix matches
    earlier in the log: rewind to there. (d) Nothing in common: the client's history replaces ours.

    With `is_whole` the client is known to send its whole history, so that (a) does not apply. A
    turn that has not ended begins at `open_from`: what the log has of it is recognized and never
    hidden.
    """
    if not log:
        return HistoryDiff(0)
    if not (is_whole or any(item.is_model_output for item in sent)):
        return HistoryDiff(_refused_again(sent, log))
    diff = _find_new(sent, log)
    renamed = _renamed_calls(sent, diff.new_from, log)
    if renamed:
        # The client answers a call under another id: its version of the turn replaces ours.
        return _find_new(_with_unique_calls(sent, renamed), log)
    return diff if open_from is None else _spare_open_turn(diff, sent, log, open_from)


def find_first_again(sent: Sequence[SentItem], log: Sequence[LogEntry]) -> HistoryDiff | None:
    """Return the diff of a request that asks the first question of a log again, or None."""
    entries = [entry for entry in log if entry.fingerprint != NO_FINGERPRINT]
    first = entries[: len(sent)]
    if [entry.fingerprint for entry in first] != [item.fingerprint for item in sent]:
        return None
    after, head = first[-1].seq, log[-1].seq
    return HistoryDiff(len(sent), (after, head)) if after < head else None


def find_new_near_end(
    sent: Sequence[SentItem], tail: Sequence[LogEntry], *, is_whole: bool = False
) -> HistoryDiff | None:
    """Compare a request with the last entries of a log, or return None if they are not enough.

    A match that ends at the log's end, or that covers the whole request, beats any match in the
    rest of the log. So most requests need only about as many entries as they repeat.
    """
    if not tail or has_output(sent):
        return None
    diff = find_new(sent, tail, is_whole=is_whole)
    if not (is_whole or any(item.is_model_output for item in sent)):
        return None if tail[0].is_refused else diff
    if not _has_more_than(tail, len(sent)):
        return None
    if diff.rewind is None:
        return diff
    is_all = diff.new_from == len(sent) and diff.rewind[0] >= tail[0].seq
    return diff if is_all else None


def _has_more_than(log: Sequence[LogEntry], count: int) -> bool:
    """Whether a history that repeats these entries must have more than `count` items."""
    for entry in log:
        if entry.fingerprint != NO_FINGERPRINT and not entry.is_optional:
            count -= 1
            if count < 0:
                return True
    return False


def _spare_open_turn(
    diff: HistoryDiff, sent: Sequence[SentItem], log: Sequence[LogEntry], open_from: int
) -> HistoryDiff:
    """Return a diff that hides nothing of the open turn.

    An earlier answer that is regenerated will come after the open turn, so its question is repeated
    there too.
    """
    if diff.rewind is None or diff.rewind[0] >= open_from - 1:
        if diff.new_from == len(sent) and log[-1].is_streaming:
            return HistoryDiff(_question(sent)[0], None, _question(sent)[1])
        return HistoryDiff(diff.new_from)
    after, upto = diff.rewind[0], open_from - 1
    if diff.new_from < len(sent) or after < log[0].seq:
        return HistoryDiff(diff.new_from, (after, upto))
    question_start, question_end = _question(sent)
    before = [entry.seq for entry in log if entry.seq <= after]
    place = max(len(before) - (question_end - question_start), 0)
    return HistoryDiff(question_start, (before[place] - 1, upto), question_end)


def _question(sent: Sequence[SentItem]) -> tuple[int, int]:
    """Return the start and end of the last question in a history."""
    end = len(sent)
    while end and _is_models(sent[end - 1]):
        end -= 1
    start = end
    while start and not _is_models(sent[start - 1]):
        start -= 1
    return start, end


def _is_models(item: SentItem) -> bool:
    return item.is_model_output or item.fingerprint == NO_FINGERPRINT


def _renamed_calls(
    sent: Sequence[SentItem], new_from: int, log: Sequence[LogEntry]
) -> frozenset[str]:
    """Return the ids of calls that have new outputs and that the log has only under other ids.

    An output finds its call by id, so such a call must be stored as the client has it.
    """
    outputs = {
        item.call_id for item in sent[new_from:]
        if item.call_id and item.kind.endswith(OUTPUT_SUFFIX)
    }  # fmt: skip
    if not outputs:
        return frozenset()
    logged_ids = {entry.call_id for entry in log}
    return frozenset(
        item.call_id for item in sent[:new_from]
        if item.call_id in outputs and item.call_id is not None and item.call_id not in logged_ids
    )  # fmt: skip


def _with_unique_calls(sent: Sequence[SentItem], call_ids: frozenset[str]) -> list[SentItem]:
    """Return the items, with unique fingerprints for these calls, so that they match nothing."""
    return [
        msgspec.structs.replace(item, fingerprint=b"call " + item.call_id.encode())
        if item.call_id is not None and item.call_id in call_ids
        else item
        for item in sent
    ]


def _find_new(sent: Sequence[SentItem], log: Sequence[LogEntry]) -> HistoryDiff:
    entries = [entry for entry in log if entry.fingerprint != NO_FINGERPRINT]
    if _has_optional(entries):
        matched, at = _align(sent, entries)
    else:
        matched, at = _match([item.fingerprint for item in sent], [e.fingerprint for e in entries])
    head = log[-1].seq
    if matched == 0:
        return HistoryDiff(0, (log[0].seq - 1, head))
    new_from = _skip_reasoning(sent, matched)
    last = entries[at].seq
    if new_from < len(sent):
        is_head = _is_head(entries[at + 1 :], sent[new_from])
        return HistoryDiff(new_from, None if is_head else (last, head))
    return _regenerate(sent, entries, at, head)


def _has_optional(log: Sequence[LogEntry]) -> bool:
    """Whether some entries are optional (`LogEntry.is_optional`)."""
    # As sets: a call for each entry of a long log would cost more than the comparison.
    flags = {entry.is_refused or entry.is_unshown or entry.is_streaming for entry in log}
    return True in flags or not {entry.partial_text for entry in log} <= {None}


def _regenerate(
    sent: Sequence[SentItem], entries: Sequence[LogEntry], at: int, head: int
) -> HistoryDiff:
    """Return the diff of a request without new items: answer its last question again."""
    while at >= 0 and _is_answer(entries[at], sent):
        at -= 1
    after = entries[at].seq if at >= 0 else entries[0].seq - 1
    return HistoryDiff(len(sent), (after, head) if after < head else None)


def _is_answer(entry: LogEntry, sent: Sequence[SentItem]) -> bool:
    """Whether a matched entry was produced by the model."""
    if entry.kind.endswith(OUTPUT_SUFFIX):
        return False
    if entry.kind != "message":
        return True
    return any(item.role == ASSISTANT and item.fingerprint == entry.fingerprint for item in sent)


def _refused_again(sent: Sequence[SentItem], log: Sequence[LogEntry]) -> int:
    """Return how many items at the start of a request repeat refused input at the log's end.

    The last item sent is the current question, even if it was refused before.
    """
    refused = list(takewhile(lambda entry: entry.is_refused, reversed(log)))
    count = 0
    for entry in reversed(refused):
        if count < len(sent) - 1 and sent[count].fingerprint == entry.fingerprint:
            count += 1
    return count


def _is_head(rest: Sequence[LogEntry], item: SentItem) -> bool:
    """Whether an item can follow the log's head: the client may lack all of the remaining entries.

    An assistant's message replaces an incomplete answer: it is the part that was shown.
    """
    if item.role == ASSISTANT and any(entry.partial_text is not None for entry in rest):
        return False
    return all(entry.is_optional for entry in rest)


def _align(sent: Sequence[SentItem], entries: Sequence[LogEntry]) -> tuple[int, int]:
    """Return what `_match` returns, for a log with entries that a client may lack.

    All candidate matches are tracked at once, each by the entry that it has reached. There are few
    of them unless a history consists of equal items; beyond a limit the middle ones are dropped.
    """
    pattern = [(at, item) for at, item in enumerate(sent) if item.fingerprint != NO_FINGERPRINT]
    ends: list[int] = list(range(len(entries)))
    tail = len(entries) - 1
    while tail > 0 and entries[tail].is_optional:
        tail -= 1
    best, at_head = (0, -1), (0, -1)
    for number, (place, item) in enumerate(pattern):
        is_last = number == len(pattern) - 1
        ends = [end for end in ends if _is_equal(item, entries[end], is_last=is_last)]
        if not ends:
            break
        best = (place + 1, ends[-1])
        if ends[-1] >= tail:
            at_head = best
        ends = _limited(sorted({after for end in ends for after in _successors(entries, end)}))
    return at_head if at_head[0] else best


def _is_equal(item: SentItem, entry: LogEntry, *, is_last: bool) -> bool:
    if entry.is_streaming:
        return item.role == ASSISTANT
    # Refused input that is sent last is a new question.
    return item.fingerprint == entry.fingerprint and not (entry.is_refused and is_last)


def _successors(entries: Sequence[LogEntry], end: int) -> Iterator[int]:
    """Yield the entries that may follow an entry in a client's history."""
    for after in range(end + 1, len(entries)):
        yield after
        if not entries[after].is_optional:
            return


def _limited(ends: list[int]) -> list[int]:
    if len(ends) <= MAX_MATCHES:
        return ends
    half = MAX_MATCHES // 2
    return ends[:half] + ends[-half:]


def _match(sent: Sequence[bytes], logged: Sequence[bytes]) -> tuple[int, int]:
    """Return how many items of `sent` match, and where in `logged` the match ends.

    A match that ends at the head beats any other. Otherwise the longest wins, and the latest of
    equally long ones. One pass over both (Knuth, Morris, Pratt); reasoning in `sent` is skipped.
    """
    pattern = [(place, print_) for place, print_ in enumerate(sent) if print_ != NO_FINGERPRINT]
    prints = [print_ for _, print_ in pattern]
    if not prints or not logged:
        return 0, -1
    if prints[: len(logged)] == logged:
        # The request continues the whole log, as most do.
        return pattern[len(logged) - 1][0] + 1, len(logged) - 1
    back = _borders(prints)
    length, best, best_at = 0, 0, -1
    for at, print_ in enumerate(logged):
        if length == len(prints):
            length = back[length - 1]
        while length and prints[length] != print_:
            length = back[length - 1]
        if prints[length] == print_:
            length += 1
        if length and length >= best:
            best, best_at = length, at
    if length:
        best, best_at = length, len(logged) - 1
    return (pattern[best - 1][0] + 1, best_at) if best else (0, -1)


def _borders(prints: Sequence[bytes]) -> list[int]:
    """Return the failure function of the pattern."""
    back = [0] * len(prints)
    length = 0
    for at in range(1, len(prints)):
        while length and prints[length] != prints[at]:
            length = back[length - 1]
        if prints[length] == prints[at]:
            length += 1
        back[at] = length
    return back


def _skip_reasoning(sent: Sequence[SentItem], matched: int) -> int:
    """Count trailing reasoning as part of the match if nothing new follows it."""
    if all(item.fingerprint == NO_FINGERPRINT for item in sent[matched:]):
        return len(sent)
    return matched


# ── tool outputs that come without a history ──────────────────────────────────────────────────


class SortedOutputs(msgspec.Struct, frozen=True):
    """The indexes of a request's new items, and the last output that the log already has."""

    new: tuple[int, ...]
    given: LogEntry | None = None


def sort_outputs(
    sent: Sequence[SentItem], log: Sequence[LogEntry], *, is_growing: bool = False
) -> SortedOutputs:
    """Compare the outputs of a request with the calls of the log; everything else is new.

    An output finds its call by id. One that is stored already is not stored twice; one without a
    call, or for a call with another output, is rejected. While the log `is_growing`, the call of an
    output may still be added.
    """
    outputs = _outputs(log)
    new: list[int] = []
    given: LogEntry | None = None
    for index, item in enumerate(sent):
        if not item.is_output or item.call_id is None:
            new.append(index)
            continue
        if item.call_id not in outputs:
            if not is_growing:
                raise InvalidInput(f"no tool call has the id {item.call_id!r}", param="input")
            new.append(index)
            continue
        stored = outputs[item.call_id]
        if stored is None:
            new.append(index)
        elif stored.fingerprint == item.fingerprint:
            given = stored
        else:
            raise InvalidInput(
                f"tool call {item.call_id!r} has another output already", param="input"
            )
    return SortedOutputs(tuple(new), given)


def _outputs(log: Sequence[LogEntry]) -> dict[str, LogEntry | None]:
    """Return the output of the latest call of each id, or None for a call without one."""
    outputs: dict[str, LogEntry | None] = {}
    for entry in log:
        if entry.call_id is None:
            continue
        if not entry.kind.endswith(OUTPUT_SUFFIX):
            outputs[entry.call_id] = None
        elif entry.call_id in outputs:
            outputs[entry.call_id] = entry
    return outputs


# ── items that a client may never have seen: text around calls of the gateway's tools ─────────


def mark_unshown(log: Sequence[LogEntry], sent: Sequence[SentItem]) -> Sequence[LogEntry]:
    """Return the log, with the entries marked that a client's history may lack.

    A Chat client gets only the final answer of a turn, or all of its texts as one message.
    These are the text around a call, words that stand for several items, the message that such
    words repeat, and messages that joined a turn. Text behind calls is moved in front of them if
    the client has it there.
    """
    is_joined, kinds = {entry.is_joined for entry in log}, {entry.kind for entry in log}
    if True not in is_joined and kinds.isdisjoint(_UNSEEN_KINDS):
        return log if kinds.isdisjoint(OUTPUT_OF) else _with_text_first(log, sent)
    users = _users_prints(sent)
    marked: list[LogEntry] = []
    is_before = is_behind = False
    for entry in reversed(log):
        if entry.kind in (CALL, WORDS):
            is_before, is_behind = True, False
        is_behind = is_behind or entry.kind == COMPLETION
        is_text = entry.kind == "message" and entry.fingerprint not in users
        is_lacking = entry.is_joined or entry.kind in (WORDS, ATTACHMENT)
        if is_lacking or (is_text and (is_before or is_behind)):
            marked.append(replace(entry, is_unshown=True))
        else:
            marked.append(entry)
        if entry.kind == "message":
            is_before = False
    marked.reverse()
    return _with_text_first(marked, sent)


def _users_prints(sent: Sequence[SentItem]) -> set[bytes]:
    return {item.fingerprint for item in sent if item.kind == "message" and item.role != ASSISTANT}


def _with_text_first(log: Sequence[LogEntry], sent: Sequence[SentItem]) -> Sequence[LogEntry]:
    """Return the log, with the text of an answer in front of its calls where the client has it.

    Calls and text of one answer are one Chat message, whatever came first. Text that is blank may
    be missing. An answer of several texts has words that stand for all of them. Text that the
    client has behind the same item as the log stays there.
    """
    ordered = [
        replace(entry, is_unshown=True)
        if entry.fingerprint == BLANK_ANSWER and _is_beside_call(log, place)
        else entry
        for place, entry in enumerate(log)
    ]
    users = _users_prints(sent)
    compared = [item for item in sent if item.fingerprint]
    pairs = {(one.fingerprint, other.fingerprint) for one, other in pairwise(compared)}
    texts = {
        (one.fingerprint, other.fingerprint)
        for one, other in pairwise(compared)
        if one.role == ASSISTANT and other.kind in OUTPUT_OF
    }
    first = 0
    while first < len(ordered):
        last = _end_of_answer(ordered, first)
        if last > first + 1:
            _put_text_first(ordered, first, last, texts, pairs, users)
        first = max(last, first + 1)
    return ordered


def _is_beside_call(log: Sequence[LogEntry], place: int) -> bool:
    return any(entry.kind in OUTPUT_OF for entry in log[max(place - 1, 0) : place + 2])


def _end_of_answer(log: Sequence[LogEntry], first: int) -> int:
    """Return where the calls from `first` on, and the messages behind them, end."""
    if log[first].kind not in OUTPUT_OF:
        return first
    last = first
    while last < len(log) and (log[last].kind in OUTPUT_OF or log[last].kind in ("message", WORDS)):
        last += 1
    return last


def _put_text_first(
    log: list[LogEntry],
    first: int,
    last: int,
    texts: set[tuple[bytes, bytes]],
    pairs: set[tuple[bytes, bytes]],
    users: set[bytes],
) -> None:
    """Move the text behind a call in front of it, and mark what a client's history may lack."""
    call = log[first].fingerprint
    for place in range(first + 1, last):
        entry = log[place]
        if entry.kind in OUTPUT_OF or (entry.fingerprint, call) not in texts:
            continue
        if (log[place - 1].fingerprint, entry.fingerprint) in pairs:
            continue  # an equal text stands in front of an equal call
        if entry.kind == WORDS:
            start = first - (first > 0 and _is_text(log[first - 1], users))
            for other in range(start, place):
                if _is_text(log[other], users):
                    log[other] = replace(log[other], is_unshown=True)
        seqs = [each.seq for each in log[first : place + 1]]
        moved = [entry, *log[first:place]]
        # A match that ends at the last call covers the text too.
        log[first : place + 1] = [
            replace(each, seq=seq) for each, seq in zip(moved, seqs, strict=True)
        ]
        return


def _is_text(entry: LogEntry, users: set[bytes]) -> bool:
    return entry.kind == "message" and entry.fingerprint not in users
