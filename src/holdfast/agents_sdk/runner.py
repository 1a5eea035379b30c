"""The SDK's runner, one run at a time in a session, and each of them once."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from agents import (
    Agent,
    AgentOutputSchema,
    MessageOutputItem,
    RunContextWrapper,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    TResponseInputItem,
)
from openai.types.responses import ResponseOutputMessage
from pydantic import TypeAdapter

from holdfast.agents_sdk.parked import identity_of, mark, waits_for
from holdfast.agents_sdk.serial import Lane
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.core.errors import TurnAlreadyDone
from holdfast.core.ids import read_idempotency_key
from holdfast.engine.held_lane import Done

Input = str | list[TResponseInputItem] | RunState[Any]


class _Left(msgspec.Struct, frozen=True):
    """What a run leaves for a repeat of it: its final output, and whether that is plain text."""

    output: str | None
    is_text: bool = True


class HoldfastRunner:
    """`Runner.run`, in the session's lane: a second run waits, and sees the first."""

    @staticmethod
    async def run(
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002 - the SDK's name for it
        *,
        session: HoldfastSession,
        run_id: str | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent; of a `run_id`, once: a repeat after a crash begins it anew, without what
        the crash left in the history, and a repeat of a finished run returns its recorded output.

        A `RunState` is resumed once: the second time it is refused with `RunStateUsed`, before
        any of its tools run.
        """
        lane = _lane(session, input, run_id)
        done = await lane.take()
        if done is not None:
            return _recorded(done, starting_agent, input, options.get("context"))
        async with _taken(lane):
            _go_on_elsewhere(lane, session, input)
            result = await Runner.run(starting_agent, input, session=session, **options)
            mark(result)
            lane.result = _what_is_left(result)
        return result

    @staticmethod
    @asynccontextmanager
    async def streamed(
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002 - the SDK's name for it
        *,
        session: HoldfastSession,
        run_id: str | None = None,
        **options: Any,
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent with a stream, to be read inside `async with`; else like `run`."""
        lane = _lane(session, input, run_id)
        if await lane.take() is not None:
            raise TurnAlreadyDone(f"run {run_id} is done; `run` returns its recorded output")
        async with _taken(lane):
            _go_on_elsewhere(lane, session, input)
            result = Runner.run_streamed(starting_agent, input, session=session, **options)
            try:
                yield result
            finally:
                if not result.is_complete:
                    result.cancel()
                    await _drained(result)
                mark(result)
            lane.result = _what_is_left(result)


@asynccontextmanager
async def _taken(lane: Lane) -> AsyncIterator[None]:
    """Leave a lane that was taken, with the end that the block comes to."""
    try:
        yield
    except BaseException as error:
        await lane.__aexit__(type(error), error, error.__traceback__)
        raise
    await lane.__aexit__(None, None, None)


async def _drained(result: RunResultStreaming) -> None:
    """Let a stream that was left come to its end, so that nothing writes after the lane is free."""
    async for _ in result.stream_events():
        pass


def _lane(session: HoldfastSession, given: Input, run_id: str | None) -> Lane:
    if isinstance(given, RunState):
        name = identity_of(given, session.session_id)
        return session.lane(run_id=name, is_once=True, resumes=waits_for(given))
    if run_id is None:
        return session.lane()
    asked = hashlib.blake2b(msgspec.json.encode(given), digest_size=16).digest()
    return session.lane(run_id=read_idempotency_key(run_id), asked=asked)


def _go_on_elsewhere(lane: Lane, session: HoldfastSession, given: Input) -> None:
    """Have a run that was parked before a clear go on in the generation it was parked in."""
    if isinstance(given, RunState) and lane.elsewhere is not None:
        session.go_on_in(lane.elsewhere, given._context)


def _what_is_left(result: RunResult | RunResultStreaming) -> str | None:
    output = result.final_output
    if output is None or result.interruptions:
        return _written(_Left(None))
    if isinstance(output, str):
        return _written(_Left(output))
    written = TypeAdapter(type(output)).dump_json(output).decode()
    return _written(_Left(written, is_text=False))


def _written(left: _Left) -> str:
    return msgspec.json.encode(left).decode()


def _recorded(done: Done, agent: Agent[Any], given: Input, context: Any) -> RunResult:
    """Return the result of a run that was carried out before, as far as it was recorded."""
    left = msgspec.json.decode(done.result, type=_Left) if done.result else _Left(None)
    output: Any = left.output
    if output is not None and not left.is_text and agent.output_type is not None:
        schema = agent.output_type
        output = (
            schema
            if isinstance(schema, AgentOutputSchema)
            else AgentOutputSchema(cast(Any, schema))
        ).validate_json(output)
    said = [] if left.output is None else [MessageOutputItem(agent, _message(left.output))]
    return RunResult(
        input=given if not isinstance(given, RunState) else [],
        new_items=list(said),
        raw_responses=[],
        final_output=output,
        input_guardrail_results=[],
        output_guardrail_results=[],
        tool_input_guardrail_results=[],
        tool_output_guardrail_results=[],
        context_wrapper=RunContextWrapper(context),
        _last_agent=agent,
    )


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
