"""Recorded results: what a finished run stores, and the result that a repeat of it returns."""

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


class _RecordedResult(msgspec.Struct, frozen=True):
    """The final output, or the state of an interrupted run. Stored: the field names stay."""

    form: Form = "none"
    text: str = ""
    agent: str | None = None
    """Name of the agent that produced it."""


def record_result(result: RunResult | RunResultStreaming) -> str:
    """Serialize what a repeat of the run needs to return the same result."""
    form, text = _form_and_text(result)
    return msgspec.json.encode(_RecordedResult(form, text, result.last_agent.name)).decode()


def _form_and_text(result: RunResult | RunResultStreaming) -> tuple[Form, str]:
    if result.interruptions:
        return "parked", _serialize(result.to_state())
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


def _serialize(state: RunState[Any]) -> str:
    """Serialize a state without its caller's context; return "" if the SDK cannot."""
    try:
        value = state.to_json(context_serializer=lambda _: {})
        value["context"]["context"] = {}
        return json.dumps(value)
    except (UserError, TypeError, ValueError):
        return ""


async def replay_result(
    done: CompletedRun, agent: Agent[Any], run_input: str | list[TResponseInputItem], context: Any
) -> RunResult:
    """Return the result of an earlier run, as far as it was recorded."""
    recorded = (
        msgspec.json.decode(done.result, type=_RecordedResult) if done.result else _RecordedResult()
    )
    wrapper = RunContextWrapper(context)
    if recorded.form == "parked":
        return await _interrupted_result(done, recorded, agent, run_input, wrapper)
    author = _find_agent(agent, recorded.agent)
    result = _empty_result(run_input, wrapper, author)
    if recorded.form != "none":
        result.new_items = [MessageOutputItem(author, _message(recorded.text))]
        result.final_output = _output(recorded, author)
    return result


async def _interrupted_result(
    done: CompletedRun,
    recorded: _RecordedResult,
    agent: Agent[Any],
    run_input: str | list[TResponseInputItem],
    wrapper: RunContextWrapper[Any],
) -> RunResult:
    """Return an interrupted run with its pending decisions, as the first call returned it."""
    if not recorded.text:
        raise TurnAlreadyDone(
            f"this run waits for a decision, as turn {done.turn_id}; its state was not stored"
        )
    state = await RunState.from_json(agent, json.loads(recorded.text), context_override=wrapper)
    result = _empty_result(run_input, wrapper, _find_agent(agent, recorded.agent))
    result.new_items = list(state._session_items)
    result.raw_responses = list(state._model_responses)
    result.interruptions = state.get_interruptions()
    result.to_state = lambda: state  # type: ignore[method-assign] # one state, resumable once
    return result


def _empty_result(
    run_input: str | list[TResponseInputItem], wrapper: RunContextWrapper[Any], agent: Agent[Any]
) -> RunResult:
    return RunResult(
        input=run_input,
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


def _output(recorded: _RecordedResult, agent: Agent[Any]) -> Any:
    schema = agent.output_type
    if recorded.form == "text" or schema is None:
        return recorded.text
    if not isinstance(schema, AgentOutputSchemaBase):
        schema = AgentOutputSchema(cast(Any, schema))
    if recorded.form == "json" and isinstance(schema, AgentOutputSchema):
        return TypeAdapter(schema.output_type).validate_json(recorded.text)
    return schema.validate_json(recorded.text)


def _find_agent(agent: Agent[Any], name: str | None) -> Agent[Any]:
    """Return the agent called `name` among those reachable by handoffs, else `agent`."""
    reachable: list[Agent[Any]] = [agent]
    for candidate in reachable:
        if candidate.name == name:
            return candidate
        for handoff in candidate.handoffs:
            target = handoff if isinstance(handoff, Agent) else _handoff_target(handoff)
            if target is not None and not any(target is known for known in reachable):
                reachable.append(target)
    return agent


def _handoff_target(handoff: Any) -> Agent[Any] | None:
    reference = getattr(handoff, "_agent_ref", None)
    agent = reference() if reference is not None else None
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
