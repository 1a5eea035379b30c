"""First questions of whole histories, to recognise one that is asked again.

Alone it looks like a new message. It is asked again (a regenerate) only if the last request of its
session came from the same API key and user agent, had a history that the log knows, and began with
exactly this question. In doubt the request is new: a guess would hide a history.
This state is in memory only and lost with the process.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from holdfast.core.history.diff import ASSISTANT
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.items import NewItem, read_role
from holdfast.core.model.session import Session
from holdfast.core.openai.chat import INSTRUCTION_ROLES
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.http.server.types import Request

MAX_SESSIONS = 4096
MAX_ITEMS = 16
"""A first question with more items is not remembered."""
_Question = tuple[Tenant, bytes | None, bytes | None, tuple[bytes, ...]]
"""Tenant, API key, user agent, and the fingerprints of the first question."""


class FirstQuestions:
    """The first question of each session whose last request had its whole history; bounded."""

    def __init__(self) -> None:
        self._asked: OrderedDict[SessionId, tuple[_Question, int]] = OrderedDict()
        """By session: its first question, and the number of the turn that sent it last."""
        self._known: Counter[_Question] = Counter()
        """In how many sessions a question is the first, to find quickly that it is in none."""

    def add(self, request: Request, items: Sequence[NewItem], ticket: TurnTicket) -> None:
        """Remember how the history of an accepted request began, and which turn it became."""
        prints, _ = _first_question(items)
        if not prints:
            return
        question = _question(request, prints)
        self._forget(self._asked.pop(ticket.session.id, None))
        self._asked[ticket.session.id] = question, ticket.turn.number
        self._known[question] += 1
        while len(self._asked) > MAX_SESSIONS:
            self._forget(self._asked.popitem(last=False)[1])

    def find(self, request: Request, items: Sequence[NewItem]) -> Callable[[Session], bool] | None:
        """Return what tells whether a request asks the first question of a session again."""
        if not self._asked:
            return None
        prints, is_all = _first_question(items)
        question = _question(request, prints)
        if not is_all or question not in self._known:
            return None
        return lambda session: self._asked.get(session.id) == (question, session.turn_count)

    def _forget(self, asked: tuple[_Question, int] | None) -> None:
        if asked is None:
            return
        question = asked[0]
        self._known[question] -= 1
        if not self._known[question]:
            del self._known[question]


def _first_question(items: Sequence[NewItem]) -> tuple[tuple[bytes, ...], bool]:
    """Return the fingerprints of the messages before the first answer, and whether that is all.

    Instructions at the beginning are left out.
    """
    prints: list[bytes] = []
    for item in items:
        role = read_role(item.body).role if item.kind == "message" else ASSISTANT
        if role == ASSISTANT:
            return tuple(prints), False
        if prints or role not in INSTRUCTION_ROLES:
            prints.append(item.fingerprint)
        if len(prints) > MAX_ITEMS:
            return (), False
    return tuple(prints), True


def _question(request: Request, prints: tuple[bytes, ...]) -> _Question:
    headers = request.by_name
    key, agent = headers.get(b"authorization"), headers.get(b"user-agent")
    return request.tenant, key, agent, prints
