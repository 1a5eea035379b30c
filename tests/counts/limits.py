"""The limits of all counts beside their goals.

A limit is what the code needs today; lower it when the code improves, never raise it without a
decision record. A row of growth is a ratio: the work at the largest size over that at the smallest.
"""

from typing import NamedTuple


class Limit(NamedTuple):
    """What is allowed now and what is wanted."""

    limit: float
    goal: float


FLAT = 1.1
"""The goal of every ratio: the work does not depend on the size."""

LIMITS: dict[str, Limit] = {
    "calls per turn, chat": Limit(130, 130),
    "calls per turn, responses": Limit(145, 130),
    "calls per first turn, chat": Limit(146, 130),
    "calls per first turn, responses": Limit(158, 130),
    # The goal is 1.5 times that of a turn on an idle lane.
    "calls per queued turn, chat": Limit(167, 195),
    "calls per queued turn, responses": Limit(181, 195),
    # Of turns as clients send them, over a Chat upstream.
    "calls per turn: keyed Chat, one user text": Limit(131, 138),
    "calls per turn: + system message and temperature": Limit(178, 175),
    "calls per turn: + Idempotency-Key": Limit(245, 175),
    "calls per turn: whole history": Limit(273, 240),
    "calls per turn: whole history + system + tools": Limit(318, 260),
    "calls per turn: streamed Responses, 6 words": Limit(301, 301),
    "calls per streamed chunk, chat": Limit(11, 10),
    "calls per streamed chunk, responses": Limit(11, 10),
    # Beside those of its chunks: of the whole turn, from one API to another.
    "calls per stream beside its chunks, chat to chat": Limit(272, 250),
    "calls per stream beside its chunks, chat to responses": Limit(294, 250),
    "calls per stream beside its chunks, responses to chat": Limit(330, 250),
    "calls per stream beside its chunks, responses to responses": Limit(354, 250),
    "calls per append of an SDK session": Limit(31, 40),
    # Of a history that the client has sent before and sends again with its next turn.
    "calls per item of a known history, chat": Limit(3, 3),
    "calls per item of a known history, responses": Limit(3, 3),
    "WAL frames per turn, 2,000 sessions": Limit(3.5, 4),
    "WAL frames per turn, 100,000 sessions": Limit(3.9, 4),
    "bytes on disk per turn": Limit(1220, 1400),
    # Sessions of 10 and 1,000 turns.
    "length, chat, turn": Limit(1.1, FLAT),
    "length, chat, append": Limit(1.1, FLAT),
    "length, chat, regenerate": Limit(1.1, FLAT),
    "length, chat, fork": Limit(1.1, FLAT),
    "length, chat, page": Limit(1.1, FLAT),
    "length, chat, retrieve": Limit(1.1, FLAT),
    "length, chat, view": Limit(1.1, FLAT),
    "length, responses, turn": Limit(1.1, FLAT),
    "length, responses, append": Limit(1.1, FLAT),
    "length, responses, regenerate": Limit(1.1, FLAT),
    "length, responses, fork": Limit(1.1, FLAT),
    "length, responses, page": Limit(1.1, FLAT),
    "length, responses, retrieve": Limit(1.1, FLAT),
    "length, responses, view": Limit(1.1, FLAT),
    # A session of 5 turns whose last answer was regenerated 10 and 300 times.
    "rewinds, chat, turn": Limit(1.1, FLAT),
    "rewinds, chat, regenerate": Limit(1.1, FLAT),
    "rewinds, chat, page": Limit(1.15, FLAT),
    "rewinds, chat, view": Limit(1.1, FLAT),
    "rewinds, responses, turn": Limit(1.1, FLAT),
    "rewinds, responses, regenerate": Limit(1.1, FLAT),
    "rewinds, responses, page": Limit(1.15, FLAT),
    "rewinds, responses, view": Limit(1.1, FLAT),
    # Chains of 5 and 100 forks with equally many turns.
    "depth, chat, turn": Limit(1.1, FLAT),
    "depth, chat, fork": Limit(1.1, FLAT),
    "depth, chat, page": Limit(1.1, FLAT),
    "depth, chat, view": Limit(1.1, FLAT),
    "depth, responses, turn": Limit(1.1, FLAT),
    "depth, responses, fork": Limit(1.1, FLAT),
    "depth, responses, page": Limit(1.1, FLAT),
    "depth, responses, view": Limit(1.1, FLAT),
    # Batches of 20 items added to conversations of 200 and 4,000 items.
    "items, chat, batch": Limit(1.1, FLAT),
    "items, chat, turn": Limit(1.1, FLAT),
    "items, chat, page": Limit(1.1, FLAT),
    "items, chat, view": Limit(1.1, FLAT),
    "items, responses, batch": Limit(1.1, FLAT),
    "items, responses, turn": Limit(1.1, FLAT),
    "items, responses, page": Limit(1.1, FLAT),
    "items, responses, view": Limit(1.1, FLAT),
}
