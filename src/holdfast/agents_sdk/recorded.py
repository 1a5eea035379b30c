"""What a run leaves behind for a repeat of it, and the result that a repeat is given."""

import json
from typing import Any, Literal, cast

import msgspec
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    ItemHelpers,
    MessageOutputItem,
    RunContextWrapper,
    RunResult,
    RunResultStreaming,
    RunState,
    TResponseInputItem,
)
from agents.exceptions import UserError
from openai.types.responses import ResponseOutputMessage
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from holdfast.core.errors import TurnAlreadyDone
from holdfast.engine.embedded.external_lane import CompletedRun

Form = Literal["text", "said", "json", "parked", "none"]


class _Left(msgspec.Struct, frozen=True):
    """The final output, or the state of a run that was parked, in the form it was kept in."""

    form: Form = "none"
    text: str = ""
    agent: str | None = None
    """Who said it."""


def what_is_left(result: RunResult | RunResultStreaming) -> str:
    """Return what a repeat of the run needs to answer as the run did."""
    form, text = _form_and_text(result)
    return msgspec.json.encode(_Left(form, text, result.last_agent.name)).decode()


def _form_and_text(result: RunResult | RunResultStreaming) -> tuple[Form, str]:
    if result.interruptions:
        return "parked", _written(result.to_state())
    output = result.final_output
    if output is None:
        return "none", ""
    if isinstance(output, str):
        return "text", output
    last = result.new_items[-1] if result.new_items else None
    if isinstance(last, MessageOutputItem):
        return "said", ItemHelpers.text_message_output(last)
    try:
        return "json", to_json(output).decode()
    except PydanticSerializationError:
        return "text", str(output)


def _written(state: RunState[Any]) -> str:
    """Return a parked state without its caller's context; nothing, if the SDK cannot write it."""
    try:
        written = state.to_json(context_serializer=lambda _: {})
        written["context"]["context"] = {}
        return json.dumps(written)
    except (UserError, TypeError, ValueError):
        return ""


async def result_of(
    done: CompletedRun, agent: Agent[Any], given: str | list[TResponseInputItem], context: Any
) -> RunResult:
    """Return the result of a run that was carried out before, as far as it was recorded."""
    left = msgspec.json.decode(done.result, type=_Left) if done.result else _Left()
    wrapper = RunContextWrapper(context)
    if left.form == "parked":
        return await _parked(done, left, agent, given, wrapper)
    speaker = _agent_of(agent, left.agent)
    result = _blank(given, wrapper, speaker)
    if left.form != "none":
        result.new_items = [MessageOutputItem(speaker, _message(left.text))]
        result.final_output = _output(left, speaker)
    return result


async def _parked(
    done: CompletedRun,
    left: _Left,
    agent: Agent[Any],
    given: str | list[TResponseInputItem],
    wrapper: RunContextWrapper[Any],
) -> RunResult:
    """Return a run that waits for decisions, as the first one returned."""
    if not left.text:
        raise TurnAlreadyDone(
            f"this run waits for a decision, as turn {done.turn_id}, and its state was not written"
        )
    state = await RunState.from_json(agent, json.loads(left.text), context_override=wrapper)
    result = _blank(given, wrapper, _agent_of(agent, left.agent))
    result.new_items = list(state._session_items)
    result.raw_responses = list(state._model_responses)
    result.interruptions = state.get_interruptions()
    result.to_state = lambda: state  # type: ignore[method-assign] # there is one, to be resumed once
    return result


def _blank(
    given: str | list[TResponseInputItem], wrapper: RunContextWrapper[Any], agent: Agent[Any]
) -> RunResult:
    return RunResult(
        input=given,
        new_items=[],
        raw_responses=[],
        final_output=None,
        input_guardrail_results=[],
        output_guardrail_results=[],
        tool_input_guardrail_results=[],
        tool_output_guardrail_results=[],
        context_wrapper=wrapper,
        _last_agent=agent,
    )


def _output(left: _Left, agent: Agent[Any]) -> Any:
    schema = agent.output_type
    if left.form == "text" or schema is None:
        return left.text
    if not isinstance(schema, AgentOutputSchemaBase):
        schema = AgentOutputSchema(cast(Any, schema))
    if left.form == "json" and isinstance(schema, AgentOutputSchema):
        return TypeAdapter(schema.output_type).validate_json(left.text)
    return schema.validate_json(left.text)


def _agent_of(agent: Agent[Any], name: str | None) -> Agent[Any]:
    """Return the agent of that name among those that the run can have been handed to."""
    met: list[Agent[Any]] = [agent]
    for one in met:
        if one.name == name:
            return one
        for handoff in one.handoffs:
            to = handoff if isinstance(handoff, Agent) else _behind(handoff)
            if to is not None and not any(to is other for other in met):
                met.append(to)
    return agent


def _behind(handoff: Any) -> Agent[Any] | None:
    found = getattr(handoff, "_agent_ref", None)
    agent = found() if found is not None else None
    return agent if isinstance(agent, Agent) else None


def _message(text: str) -> ResponseOutputMessage:
    return ResponseOutputMessage.model_validate(
        {
            "id": "msg_recorded",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    )
