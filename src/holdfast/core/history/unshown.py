"""Items of the log that a client may never have seen: text around calls of the gateway's tools.

A Chat client gets only the final answer of a turn, or all of its texts as one message. Its history
must be recognized in both cases.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.history.diff import ASSISTANT, LogEntry, SentItem
from holdfast.core.model.gateway_items import ATTACHMENT, CALL, WORDS


def mark_unshown(log: Sequence[LogEntry], sent: Sequence[SentItem]) -> Sequence[LogEntry]:
    """Return the log, with the entries marked that a client's history may lack.

    These are the text before a call, words that stand for several items, the message that such
    words repeat, and messages that joined a turn.
    """
    if not any(entry.is_joined or entry.kind in (CALL, WORDS, ATTACHMENT) for entry in log):
        return log
    users = {item.fingerprint for item in sent if item.kind == "message" and item.role != ASSISTANT}
    marked: list[LogEntry] = []
    is_before = False
    for entry in reversed(log):
        if entry.kind in (CALL, WORDS):
            is_before = True
        is_text = entry.kind == "message" and entry.fingerprint not in users
        is_lacking = entry.is_joined or entry.kind in (WORDS, ATTACHMENT)
        if is_lacking or (is_text and is_before):
            marked.append(replace(entry, is_unshown=True))
        else:
            marked.append(entry)
        if entry.kind == "message":
            is_before = False
    marked.reverse()
    return marked
