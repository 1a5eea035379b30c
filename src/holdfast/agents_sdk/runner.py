"""The SDK's runner with serial runs per session, each executed once."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from agents import Agent, Runner, RunResult, RunResultStreaming, RunState, TResponseInputItem

from holdfast.agents_sdk.lane import SessionLane
from holdfast.agents_sdk.recorded_result import record_result, replay_result
from holdfast.agents_sdk.run_state import (
    RunIdentity,
    identify,
    new_tag,
    pending_call_ids,
    set_tag,
    tag_run_state,
)
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.core.errors import InvalidInput, TurnAlreadyDone
from holdfast.core.ids import read_idempotency_key

Input = str | list[TResponseInputItem] | RunState[Any]


class HoldfastRunner:
    """`Runner.run` in the session's lane: a second run waits for the first and sees its items."""

    @staticmethod
    async def run(
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002 - the SDK's name for it
        *,
        session: HoldfastSession,
        run_id: str | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent, at most once per `run_id`.

        A repeat after a crash restarts the run and hides the items that the crashed run left in the
        history. A repeat of a completed run returns its recorded output; a repeat of an interrupted
        run returns its pending decisions.

        A `RunState` can be resumed once. A second attempt raises `RunStateUsed` before any of its
        tools run.
        """
        lane_run = _LaneRun(session, input, run_id)
        done = await lane_run.lane.take()
        if done is not None:
            run_input = input if not isinstance(input, RunState) else []
            return await replay_result(done, starting_agent, run_input, options.get("context"))
        async with lane_run.held():
            result = await Runner.run(starting_agent, input, session=session, **options)
            if result.interruptions:
                tag_run_state(result, lane_run.tag)
            lane_run.record(result)
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
        """Run an agent with a stream, to be read inside `async with`; otherwise like `run`.

        Leaving the block before the stream ends, or an error in it, interrupts the run.
        """
        lane_run = _LaneRun(session, input, run_id)
        if await lane_run.lane.take() is not None:
            raise TurnAlreadyDone(f"run {run_id} is done; `run` returns its recorded output")
        async with lane_run.held():
            result = Runner.run_streamed(starting_agent, input, session=session, **options)
            tag_run_state(result, lane_run.tag)
            try:
                yield result
            finally:
                lane_run.lane.failure = await _drain_stream(result)
                lane_run.record(result)


class _LaneRun:
    """One run in its lane: its identity before, and its recorded result after."""

    def __init__(self, session: HoldfastSession, run_input: Input, run_id: str | None) -> None:
        if not isinstance(session, HoldfastSession):
            raise InvalidInput("HoldfastRunner needs a HoldfastSession, for its lane")
        self._session = session
        self._input = run_input
        self._is_repeatable = run_id is not None and not isinstance(run_input, RunState)
        self._identity: RunIdentity | None = None
        self.tag = new_tag()
        """Identifies the run if it is interrupted."""
        self.lane = self._new_lane(run_id)

    def _new_lane(self, run_id: str | None) -> SessionLane:
        session, run_input = self._session, self._input
        if isinstance(run_input, RunState):
            self._identity = identify(run_input, session.session_id)
            return session.lane(
                run_id=self._identity.run_id,
                is_once=True,
                is_unique=self._identity.is_unique,
                resumes=pending_call_ids(run_input),
            )
        if run_id is None:
            return session.lane()
        input_hash = hashlib.blake2b(msgspec.json.encode(run_input), digest_size=16).digest()
        return session.lane(run_id=read_idempotency_key(run_id), input_hash=input_hash)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Release the held lane when the block ends, with the block's outcome."""
        try:
            self._resume()
            yield
        except BaseException as error:
            await self.lane.__aexit__(type(error), error, error.__traceback__)
            raise
        finally:
            self._retag()
        await self.lane.__aexit__(None, None, None)

    def _resume(self) -> None:
        """Continue a run that was interrupted before a clear in its own, retired generation."""
        if isinstance(self._input, RunState):
            self._retag()
            if self.lane.elsewhere is not None:
                self._session.continue_in(self.lane.elsewhere, self._input._context)

    def _retag(self) -> None:
        """Set the tag on the resumed state again: running it replaces the trace that holds it."""
        if isinstance(self._input, RunState) and self._identity is not None:
            set_tag(self._input, self._identity.tag)

    def record(self, result: RunResult | RunResultStreaming) -> None:
        """Record what a repeat needs; a run that is interrupted again gets its new tag."""
        if result.interruptions and self._identity is not None:
            self._identity = RunIdentity(self.tag, is_unique=True)
        if self._is_repeatable and self.lane.failure is None:
            self.lane.result = record_result(result)


async def _drain_stream(result: RunResultStreaming) -> BaseException | None:
    """Read a stream to its end, so that nothing writes after the lane is free.

    Return why the run did not complete, or None.
    """
    is_unfinished = not result.is_complete
    if is_unfinished:
        result.cancel()
    try:
        async for _ in result.stream_events():
            pass
    except Exception as error:  # noqa: BLE001 - any error fails the run and is returned
        return error
    if result.run_loop_exception is not None:
        return result.run_loop_exception
    task = result.run_loop_task
    is_cancelled = result._cancel_mode != "none" and result.final_output is None
    if (
        is_unfinished
        or (task is not None and task.cancelled())
        or (is_cancelled and not result.interruptions)
    ):
        return asyncio.CancelledError("the stream was not read to its end")
    return None
