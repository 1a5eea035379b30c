"""A little of the Letta API: an agent that remembers, and that is busy while it answers."""

from holdfast.simulator.apis.fields import text_of
from holdfast.simulator.apis.reply import Seen, compose
from holdfast.simulator.delivery.errors import Problem, listed_problem
from holdfast.simulator.state.call import Answer, Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import Conversation
from holdfast.simulator.state.tokens import count_items, count_text
from holdfast.simulator.state.world import World


def create(world: World, call: Call) -> Answer:
    """Answer POST /v1/agents/{id}/messages; an agent exists as soon as it is spoken to."""
    agent_id = call.parameters["id"]
    agent = call.account.conversations.get(agent_id)
    if agent is None:
        agent = Conversation(id=agent_id, created_at=call.now, metadata={})
        call.account.conversations[agent_id] = agent
    if agent.locked_by is not None:
        raise listed_problem("L01")
    given = call.body.get("messages")
    if not isinstance(given, list) or not given or not all(isinstance(m, dict) for m in given):
        raise Problem(422, {"detail": "messages: field required"})
    agent.locked_by = call.number
    return _answer(call, agent, given)


def _answer(call: Call, agent: Conversation, given: list[Json]) -> Answer:
    context = agent.items + given
    seen = Seen(messages=len(context), last_text=text_of(given[-1].get("content")))
    reply = compose(seen, [], None, call.script)
    message_id = call.ids.take("message-", size=16)
    said = {"role": "assistant", "content": reply.text}

    def commit() -> None:
        agent.items += [*given, said]

    def release() -> None:
        agent.locked_by = None

    used, spoken = count_items(context), count_text(reply.text)
    body = {
        "messages": [
            {"id": message_id, "message_type": "assistant_message", "content": reply.text}
        ],
        "stop_reason": {"message_type": "stop_reason", "stop_reason": "end_turn"},
        "usage": {
            "message_type": "usage_statistics",
            "prompt_tokens": used,
            "completion_tokens": spoken,
            "total_tokens": used + spoken,
        },
    }
    return Answer(body=body, commit=commit, release=release, id=message_id)
