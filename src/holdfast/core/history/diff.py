"""Which part of a request is new, when a client may send its whole history each time.

The client's items are compared with the log by fingerprint, never with a compacted projection.
What is recognised is not stored twice; an edit or a regenerate becomes a rewind record, and the
items it hides stay readable.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS

NO_FINGERPRINT = b""
ASSISTANT = "assistant"
CALL_SUFFIX = "_call"
MADE_KINDS = frozenset({"mcp_approval_request", "compaction"})
"""What else only a model's server makes: calls are known by their names."""


class SentItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a request: `text` only matters for an assistant's message."""

    fingerprint: bytes
    kind: str
    role: str | None = None
    text: str = ""
    call_id: str | None = None

    @property
    def is_output(self) -> bool:
        """Whether a client's tool said this: it comes by itself, or within a history."""
        return self.kind in OUTPUT_KINDS and self.call_id is not None

    @property
    def is_model_output(self) -> bool:
        """Whether a model said this: only who repeats a history sends it.

        What cannot be compared, such as reasoning, tells nothing; nor does a kind that is nobody's.
        """
        if self.fingerprint == NO_FINGERPRINT:
            return False
        is_made = self.kind.endswith(CALL_SUFFIX) or self.kind in MADE_KINDS
        return self.role == ASSISTANT or is_made


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One visible item of the log; `torn_text` is the text of an answer that broke off."""

    seq: int
    fingerprint: bytes
    kind: str = "message"
    torn_text: str | None = None
    call_id: str | None = None


class HistoryDiff(msgspec.Struct, frozen=True):
    """The request's items from `new_from` on are new; `rewind` hides what they replace.

    With `new_upto`, what stands there and behind is an answer that is to be given again.
    """

    new_from: int
    rewind: tuple[int, int] | None = None
    new_upto: int | None = None


def find_new(
    sent: Sequence[SentItem],
    log: Sequence[LogEntry],
    *,
    is_whole: bool = False,
    open_from: int | None = None,
) -> HistoryDiff:
    """Compare a request with the log of the turns that were complete when it arrived.

    (a) nothing but what the user and its tools say: all of it is new; (b) the longest beginning
    that the log ends with: the rest is new; (c) the longest beginning found earlier in the log: a
    rewind to there; (d) nothing in common: the client's history takes the place of ours.

    With `is_whole` the client is known to send all it has, so that (a) says nothing. A turn that
    has not ended begins at `open_from`: what the log has of it is recognised, and never hidden.
    """
    if not log or not (is_whole or any(item.is_model_output for item in sent)):
        return HistoryDiff(0)
    found = _find_new(sent, log)
    strange = _renamed_calls(sent, found.new_from, log)
    if strange:
        # Who answers a call under a name of its own speaks for the turn that made it.
        return _find_new(_apart(sent, strange), log)
    return found if open_from is None else _beside(found, sent, log, open_from)


def _beside(
    found: HistoryDiff, sent: Sequence[SentItem], log: Sequence[LogEntry], open_from: int
) -> HistoryDiff:
    """Return what is new beside a turn that goes on: nothing of it is hidden.

    An answer before it that is to be given again will stand behind it: so does its question then.
    """
    if found.rewind is None or found.rewind[0] >= open_from - 1:
        return HistoryDiff(found.new_from)
    after, upto = found.rewind[0], open_from - 1
    if found.new_from < len(sent) or after < log[0].seq:
        return HistoryDiff(found.new_from, (after, upto))
    asked_upto = len(sent)
    while asked_upto and _is_models(sent[asked_upto - 1]):
        asked_upto -= 1
    asked_from = asked_upto
    while asked_from and not _is_models(sent[asked_from - 1]):
        asked_from -= 1
    before = [entry.seq for entry in log if entry.seq <= after]
    place = max(len(before) - (asked_upto - asked_from), 0)
    return HistoryDiff(asked_from, (before[place] - 1, upto), asked_upto)


def _is_models(item: SentItem) -> bool:
    return item.is_model_output or item.fingerprint == NO_FINGERPRINT


def _renamed_calls(
    sent: Sequence[SentItem], new_from: int, log: Sequence[LogEntry]
) -> frozenset[str]:
    """Return the calls whose outputs are new, and that the log has under other ids alone.

    An output finds its call by id: such a call has to be taken in as the client has it.
    """
    outputs = {
        item.call_id for item in sent[new_from:]
        if item.call_id and item.kind.endswith(OUTPUT_SUFFIX)
    }  # fmt: skip
    if not outputs:
        return frozenset()
    known = {entry.call_id for entry in log}
    return frozenset(
        item.call_id for item in sent[:new_from]
        if item.call_id in outputs and item.call_id is not None and item.call_id not in known
    )  # fmt: skip


def _apart(sent: Sequence[SentItem], strange: frozenset[str]) -> list[SentItem]:
    """Return the items with fingerprints by which the strange calls are nobody else's."""
    return [
        msgspec.structs.replace(item, fingerprint=b"call " + item.call_id.encode())
        if item.call_id is not None and item.call_id in strange
        else item
        for item in sent
    ]


def _find_new(sent: Sequence[SentItem], log: Sequence[LogEntry]) -> HistoryDiff:
    known = _comparable(log, sent)
    matched, at = _match([item.fingerprint for item in sent], [e.fingerprint for e in known])
    head = log[-1].seq
    if matched == 0:
        return HistoryDiff(0, (log[0].seq - 1, head))
    new_from = _skip_reasoning(sent, matched)
    last = known[at].seq
    if new_from < len(sent):
        is_head = at == len(known) - 1
        return HistoryDiff(new_from, None if is_head else (last, head))
    return _again(sent, known, at, head)


def _again(sent: Sequence[SentItem], known: Sequence[LogEntry], at: int, head: int) -> HistoryDiff:
    """Nothing is new: the last question is to be answered again, from where it was asked."""
    while at >= 0 and _is_assistant_entry(known[at], sent):
        at -= 1
    after = known[at].seq if at >= 0 else known[0].seq - 1
    return HistoryDiff(len(sent), (after, head) if after < head else None)


def _is_assistant_entry(entry: LogEntry, sent: Sequence[SentItem]) -> bool:
    """Whether a recognised entry is the model's own: those at the end are what to do again."""
    if entry.kind.endswith(OUTPUT_SUFFIX):
        return False
    if entry.kind != "message":
        return True
    return any(item.role == ASSISTANT and item.fingerprint == entry.fingerprint for item in sent)


def _comparable(log: Sequence[LogEntry], sent: Sequence[SentItem]) -> list[LogEntry]:
    """Leave out what a client may rightly not have: reasoning, and answers that broke off.

    Of a torn answer the client may have seen any part; if it sends one, that is the same answer.
    """
    known: list[LogEntry] = []
    for entry in log:
        if entry.torn_text is not None:
            seen = _seen_part(entry.torn_text, sent)
            if seen is not None:
                known.append(msgspec.structs.replace(entry, fingerprint=seen))
        elif entry.fingerprint != NO_FINGERPRINT:
            known.append(entry)
    return known


def _seen_part(torn: str, sent: Sequence[SentItem]) -> bytes | None:
    for item in sent:
        if item.role == ASSISTANT and item.text and torn.strip().startswith(item.text.strip()):
            return item.fingerprint
    return None


def _match(sent: Sequence[bytes], known: Sequence[bytes]) -> tuple[int, int]:
    """Return how much of `sent` is recognised, and where in `known` that ends.

    A match that ends at the head wins over any other; else the longest does, the latest of
    equals. One pass over both (Knuth, Morris, Pratt); reasoning that is sent is stepped over.
    """
    pattern = [(place, print_) for place, print_ in enumerate(sent) if print_ != NO_FINGERPRINT]
    prints = [print_ for _, print_ in pattern]
    if not prints or not known:
        return 0, -1
    back = _borders(prints)
    length, best, best_at = 0, 0, -1
    for at, print_ in enumerate(known):
        if length == len(prints):
            length = back[length - 1]
        while length and prints[length] != print_:
            length = back[length - 1]
        if prints[length] == print_:
            length += 1
        if length and length >= best:
            best, best_at = length, at
    if length:
        best, best_at = length, len(known) - 1
    return (pattern[best - 1][0] + 1, best_at) if best else (0, -1)


def _borders(prints: Sequence[bytes]) -> list[int]:
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
    """Reasoning with nothing new behind it belongs to what was recognised."""
    if all(item.fingerprint == NO_FINGERPRINT for item in sent[matched:]):
        return len(sent)
    return matched
