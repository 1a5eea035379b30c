"""The hash of a history: equal for two histories with the same content.

It finds a stored history that a request repeats, so that the request can point to it instead of
storing it again. Call ids count, because new items may answer a call by its id.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.history.diff import ASSISTANT, BLANK_ANSWER, SentItem
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.items import OUTPUT_SUFFIX

EMPTY_HISTORY = b""
Step = tuple[bytes, str | None]
"""An item's fingerprint and call id."""


class HistoryHashRow(msgspec.Struct, frozen=True):
    """The end of a history: item `seq` of a session, with the session's records at that time."""

    session_id: SessionId
    seq: int
    record_no: int
    tenant: Tenant
    history_hash: bytes


class ItemPlaceRow(msgspec.Struct, frozen=True):
    """The session and place of an item that a later request may refer to by its id."""

    tenant: Tenant
    item_id: str
    session_id: SessionId
    seq: int


class PrefixHash(msgspec.Struct, frozen=True, gc=False):
    """The hash of a request's first `count` items."""

    count: int
    history_hash: bytes


def extend_hash(history_hash: bytes, steps: Iterable[Step]) -> bytes:
    """Return a hash extended by more items; items without a fingerprint are skipped."""
    for fingerprint, call_id in steps:
        if fingerprint:
            end = call_id.encode("utf-8", "replace") if call_id else b""
            content = b"%b\0%b\0%b" % (history_hash, fingerprint, end)
            history_hash = hashlib.blake2b(content, digest_size=16).digest()
    return history_hash


def in_one_order(items: Sequence[SentItem]) -> list[int]:
    """Return the indexes of an answer's items: its text, then its calls.

    Clients of Chat have text and calls in one message, so their order says nothing. Blank text,
    which many of them drop, is left out beside calls.
    """
    texts = [at for at, item in enumerate(items) if item.kind == "message"]
    if len(texts) in (0, len(items)):
        return list(range(len(items)))
    others = [at for at, item in enumerate(items) if item.kind != "message"]
    return [*(at for at in texts if items[at].fingerprint != BLANK_ANSWER), *others]


def history_hashes(
    sent: Sequence[SentItem], call_ids: Sequence[str | None]
) -> tuple[bytes, list[PrefixHash]]:
    """Return the hash of a history, and those after each model output that something follows."""
    hashes: list[PrefixHash] = []
    history_hash = EMPTY_HISTORY
    last = len(sent) - 1
    answer_from = 0
    for index, item in enumerate(sent):
        if not _is_models(item):
            history_hash = extend_hash(history_hash, ((item.fingerprint, call_ids[index]),))
            answer_from = index + 1
        elif index == last or not _is_models(sent[index + 1]):
            order = in_one_order(sent[answer_from : index + 1])
            places = [answer_from + at for at in order]
            steps = [(sent[at].fingerprint, call_ids[at]) for at in places]
            history_hash = extend_hash(history_hash, steps)
            if index < last:
                hashes.append(PrefixHash(index + 1, history_hash))
    return history_hash, hashes


def _is_models(item: SentItem) -> bool:
    if item.kind == "message":
        return item.role == ASSISTANT
    return not item.kind.endswith(OUTPUT_SUFFIX)
