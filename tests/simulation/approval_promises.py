"""Approvals: nothing runs unasked, the first answer wins, and only the sender may give it."""

from collections import defaultdict
from collections.abc import Iterator

from holdfast.core.model.gateway_items import (
    APPROVAL,
    CALL,
    GatewayApproval,
    GatewayCall,
    load_item,
)
from holdfast.core.transaction.changes import Decision
from tests.simulation.approving import STRANGER, GivenAnswer
from tests.simulation.replica import sender_of
from tests.simulation.world import Story
from tests.written_rows import ItemsAdded, rows_of

Breaches = Iterator[str]


class Asked:
    """The requests for approvals of a story and their answers, in the order of the commits."""

    def __init__(self, story: Story) -> None:
        self.requests: dict[str, GatewayCall] = {}
        """By the id of the model's call."""
        self.answers: dict[str, list[tuple[float, str, GatewayApproval]]] = defaultdict(list)
        """Time, tenant and answer, by the id of the request; each answer once."""
        for written in story.journal:
            if isinstance(written.result, Decision):
                for row in rows_of(written.result.changes):
                    if isinstance(row, ItemsAdded):
                        self._add(story, written.at, row)

    def _add(self, story: Story, at: float, row: ItemsAdded) -> None:
        for item in row.items:
            if item.kind not in (CALL, APPROVAL):
                continue
            stored = load_item(item.body)
            if isinstance(stored, GatewayCall) and stored.code is not None:
                self.requests[stored.call_id] = stored
            elif isinstance(stored, GatewayApproval):
                known = self.answers[stored.call_id]
                tenant = story.image.sessions[item.session_id].tenant
                if stored.id not in [answer.id for _, _, answer in known]:
                    known.append((at, tenant, stored))


def tools_run_only_if_allowed(story: Story) -> Breaches:
    """a call that needs an approval runs only after the first answer to it allowed it."""
    asked = Asked(story)
    for call in story.tools.calls:
        if not call.needs_approval:
            continue
        request = asked.requests.get(call.call_id)
        if request is None:
            yield f"approval {call.call_id} ran, and nobody was asked"
            continue
        answers = [one for one in asked.answers[request.id] if one[0] <= call.at]
        if not answers:
            yield f"approval {call.call_id} ran before {request.id} was answered"
        elif not answers[0][2].approve:
            yield f"approval {call.call_id} ran although {request.id} was denied"


def approvals_are_answered_once(story: Story) -> Breaches:
    """I2: one answer per request, by the turn's sender; what was acknowledged is it."""
    asked = Asked(story)
    for name, answers in asked.answers.items():
        if len(answers) > 1:
            yield f"approval {name} was answered {len(answers)} times"
        for _, tenant, answer in answers:
            if answer.by != sender_of(tenant):
                yield f"approval {name} of {tenant} was answered by {answer.by}"
    for heard in story.heard:
        given = heard.answer
        if not isinstance(given, GivenAnswer):
            continue
        if given.by == STRANGER:
            yield f"approval {heard.op.id}: a stranger answered {given.name}"
        kept = [answer.approve for _, _, answer in asked.answers[given.name]]
        if given.approve not in kept:
            yield f"I2 {heard.op.id}: the answer {given.approve} to {given.name} is {kept}"
