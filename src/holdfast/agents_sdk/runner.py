"""The SDK's runner, one run at a time in a session, and each of them once."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from agents import Agent, Runner, RunResult, RunResultStreaming, RunState, TResponseInputItem

from holdfast.agents_sdk.parked import Identity, identity_of, mark, new_mark, put_mark, waits_for
from holdfast.agents_sdk.recorded import result_of, what_is_left
from holdfast.agents_sdk.serial import Lane
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.core.errors import InvalidInput, TurnAlreadyDone
from holdfast.core.ids import read_idempotency_key

Input = str | list[TResponseInputItem] | RunState[Any]


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
        the crash left in the history, and a repeat of a finished run returns its recorded output,
        one of a parked run what it waits for.

        A `RunState` is resumed once: the second time it is refused with `RunStateUsed`, before
        any of its tools run.
        """
        turn = _Turn(session, input, run_id)
        done = await turn.lane.take()
        if done is not None:
            given = input if not isinstance(input, RunState) else []
            return await result_of(done, starting_agent, given, options.get("context"))
        async with turn.taken():
            result = await Runner.run(starting_agent, input, session=session, **options)
            if result.interruptions:
                mark(result, turn.mark)
            turn.keep(result)
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
        """Run an agent with a stream, to be read inside `async with`; else like `run`.

        A stream that is left before its end, or that ended in an error, is a run that was torn off.
        """
        turn = _Turn(session, input, run_id)
        if await turn.lane.take() is not None:
            raise TurnAlreadyDone(f"run {run_id} is done; `run` returns its recorded output")
        async with turn.taken():
            result = Runner.run_streamed(starting_agent, input, session=session, **options)
            mark(result, turn.mark)
            try:
                yield result
            finally:
                turn.lane.failure = await _torn(result)
                turn.keep(result)


class _Turn:
    """One run in its lane: what it is known by before, and what is kept of it after."""

    def __init__(self, session: HoldfastSession, given: Input, run_id: str | None) -> None:
        if not isinstance(session, HoldfastSession):
            raise InvalidInput("the runner helper takes a HoldfastSession: it needs its lane")
        self._session = session
        self._given = given
        self._is_repeatable = run_id is not None and not isinstance(given, RunState)
        self._identity: Identity | None = None
        self.mark = new_mark()
        """By this the run is known, should it be parked."""
        self.lane = self._lane(run_id)

    def _lane(self, run_id: str | None) -> Lane:
        session, given = self._session, self._given
        if isinstance(given, RunState):
            self._identity = identity_of(given, session.session_id)
            return session.lane(
                run_id=self._identity.name,
                is_once=True,
                is_own=self._identity.is_own,
                resumes=waits_for(given),
            )
        if run_id is None:
            return session.lane()
        asked = hashlib.blake2b(msgspec.json.encode(given), digest_size=16).digest()
        return session.lane(run_id=read_idempotency_key(run_id), asked=asked)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Leave a lane that was taken, with the end that the block comes to."""
        try:
            self._resume()
            yield
        except BaseException as error:
            await self.lane.__aexit__(type(error), error, error.__traceback__)
            raise
        finally:
            self._stay_used()
        await self.lane.__aexit__(None, None, None)

    def _resume(self) -> None:
        """Have a run that was parked before a clear go on in the generation it was parked in."""
        if isinstance(self._given, RunState):
            self._stay_used()
            if self.lane.elsewhere is not None:
                self._session.go_on_in(self.lane.elsewhere, self._given._context)

    def _stay_used(self) -> None:
        """Have the very state that was resumed be known as such, although the run changes it."""
        if isinstance(self._given, RunState) and self._identity is not None:
            put_mark(self._given, self._identity.mark)

    def keep(self, result: RunResult | RunResultStreaming) -> None:
        """Keep what a repeat needs; a state that is parked again is what its run is parked as."""
        if result.interruptions and self._identity is not None:
            self._identity = Identity(self.mark, is_own=True)
        if self._is_repeatable and self.lane.failure is None:
            self.lane.result = what_is_left(result)


async def _torn(result: RunResultStreaming) -> BaseException | None:
    """Let a stream come to its end, so that nothing writes after the lane is free; was it torn?"""
    is_left = not result.is_complete
    if is_left:
        result.cancel()
    try:
        async for _ in result.stream_events():
            pass
    except Exception as error:  # noqa: BLE001 - whatever the run failed with, it failed
        return error
    if result.run_loop_exception is not None:
        return result.run_loop_exception
    task = result.run_loop_task
    is_stopped = result._cancel_mode != "none" and result.final_output is None
    if (
        is_left
        or (task is not None and task.cancelled())
        or (is_stopped and not result.interruptions)
    ):
        return asyncio.CancelledError("the stream was left before its end")
    return None
