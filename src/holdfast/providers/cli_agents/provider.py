"""The provider of a command-line agent; to its callers it looks like a model.

The log is the source of truth, and the agent's own session is a cache of it. The session is resumed
only if this machine's record of it names the same last turn; otherwise a new session of the agent
starts with the history as its first message.
"""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput, ProviderFailure
from holdfast.core.model.session import ProviderState
from holdfast.ports.provider import Answer, EventSink, ModelCall, StateUse
from holdfast.ports.session_runtimes import FindSession
from holdfast.providers.cli_agents.agent import Agent, AgentRequest, AgentTurn, TurnInput
from holdfast.providers.cli_agents.directories import (
    AgentDirectories,
    AgentSessionRecord,
    SessionDirectory,
    this_gateway,
)
from holdfast.providers.cli_agents.failures import (
    agent_busy,
    agent_failure,
    agent_not_prepared,
    agent_timeout,
    stale_session,
)
from holdfast.providers.cli_agents.launcher import Launcher
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.params import check_fields, instructions_of
from holdfast.providers.cli_agents.pool import ProcessPool, RunningAgent
from holdfast.providers.cli_agents.prompt import check_items, new_prompt, whole_prompt
from holdfast.providers.failure_log import CallRecord, log_failure
from holdfast.providers.items.ids import NewId
from holdfast.providers.items.seal_owner import account_of
from holdfast.providers.settings import UpstreamSettings, is_name

DEFAULT_MODEL = "default"
WAIT_SECONDS = 1800.0
"""How long a turn waits for a process and its directory, before its own time limit starts."""
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The provider state of a session: the agent's session id, and what it depends on."""

    session: str
    token: str
    """The last turn of the agent's session, as in the record of the directory."""
    mark: str
    version: str
    work: str
    config: str


class CliAgentProvider:
    """An upstream that is a command-line agent."""

    def __init__(self, settings: UpstreamSettings, agent: Agent, new_id: NewId) -> None:
        self._settings = settings
        self._agent = agent
        self._new_id = new_id
        self.name = settings.name
        self.record = CallRecord()
        self.launcher = Launcher(settings, agent)
        self.directories = AgentDirectories(
            settings.runtime.root / settings.name, settings.workdir, self.launcher.accounts
        )
        self._pool = ProcessPool(
            settings.max_processes, settings.idle_seconds, settings.memory_bytes, settings.name
        )
        self._locks: dict[str, _CountedLock] = {}
        self._account = account_of(f"{settings.api}:{settings.command}", settings.permissions)

    # ── the port ────────────────────────────────────────────────────────────────────────────

    def check(self, call: ModelCall) -> None:
        """Raise for what the agent cannot do: tools of the client, output formats, files."""
        self._model_name(call.model)
        check_fields(call.fields, call.chat_fields, self.name)
        check_items(call.items, self.name, with_images=self._agent.supports_images)

    detect = None

    def state_use(
        self,
        model: str,
        chat_fields: Mapping[str, msgspec.Raw],  # noqa: ARG002 - any request has the same
    ) -> StateUse:
        """Return the slot of the agent's session; every turn changes the session."""
        return StateUse(self._state(model, b"").slot, is_mutable=True, is_local=True)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return await self._run_logged(call, None)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write the agent's output as it arrives."""
        return await self._run_logged(call, sink)

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that the settings name, and the agent's own default if it is served."""
        names = [name for name in self._settings.models if is_name(name)]
        defaults = [f"{prefix}/{DEFAULT_MODEL}" for prefix in (self._settings.api, self.name)]
        names += [name for name in defaults if name not in names and self._serves(name)][:1]
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": self.name} for name in names
        ]

    async def close(self) -> None:
        """End every process."""
        await self._pool.close()

    # ── lifecycle ───────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Kill what a dead gateway left, and reject unsafe settings."""
        await asyncio.to_thread(self.directories.end_leftovers)
        await self.launcher.check()

    async def end_session(self, session_id: str) -> None:
        """End the warm process of a session."""
        await self._pool.end(session_id)

    def running_sessions(self) -> Collection[str]:
        """Return the sessions that have a warm process."""
        return self._pool.names()

    async def stored_sessions(self) -> Collection[str]:
        """Return the sessions that have a directory."""
        return await asyncio.to_thread(self.directories.names)

    async def clean_session(self, session_id: str, find: FindSession) -> None:
        """Delete the agent's transcripts of a session that cannot be resumed; all if it is erased.

        A transcript has the text of items that were erased since. The next turn would delete it
        anyway; a session that another gateway has reset or erased may have no next turn here.
        """
        directory = self.directories.existing(session_id)
        if directory is None and session_id not in self._pool.names():
            return
        token = directory.read().token if directory is not None else ""
        session = await find(session_id)
        if session is None:
            return
        if session.is_erased:
            # Another gateway of this machine may have deleted the directory of this process.
            await self._pool.end(session_id)
            async with self._locked(session_id):
                directory = self.directories.existing(session_id)
                if directory is not None:
                    await asyncio.to_thread(directory.remove)
        elif not _is_resumable(token, session.states):
            await self._forget(session_id, directory, token)

    async def _forget(
        self, session_id: str, directory: SessionDirectory | None, token: str
    ) -> None:
        """Delete the agent's own transcripts, unless a turn has begun meanwhile."""
        if directory is None or session_id in self._locks:
            return
        if session_id not in self._pool.names() and not directory.has_config:
            return
        async with self._locked(session_id):
            try:
                async with directory.locked(0, with_work=False):
                    if directory.read().token == token:
                        await self._pool.end(session_id)
                        directory.end_leftover()
                        await asyncio.to_thread(directory.empty_config)
            except ProviderFailure:
                return  # another gateway of this machine has begun a turn

    # ── one call ────────────────────────────────────────────────────────────────────────────

    async def _run_logged(self, call: ModelCall, sink: EventSink | None) -> Answer:
        started_at = time.monotonic()
        try:
            answer = await self._run(call, sink)
        except ProviderFailure as failure:
            content = b'{"input":[' + b",".join(call.items) + b"]}"
            self.record.note_failure(log_failure(self.name, failure, started_at, body=(content,)))
            raise
        self.record.answered, self.record.failures = started_at, 0
        return answer

    async def _run(self, call: ModelCall, sink: EventSink | None) -> Answer:
        name = call.session_id or uuid.uuid4().hex
        output = AgentOutput(self._new_id, sink)
        limit = _TimeLimit(self._settings)
        try:
            async with limit.timeout, self._locked_work(), self._locked(name):
                directory = (
                    self.directories.session(name)
                    if call.session_id
                    else self.directories.temporary(name)
                )
                directory.create()
                try:
                    async with directory.locked(self._settings.turn_seconds):
                        agent = await self._pool.take(name)
                        limit.begin_turn()
                        return await self._run_in_place(call, name, directory, output, agent)
                finally:
                    if directory.is_temporary:
                        await asyncio.to_thread(directory.remove)
        except TimeoutError as exc:
            raise limit.failure() from exc
        except OSError as exc:
            raise agent_not_prepared(exc.strerror or str(exc)) from exc

    async def _run_in_place(
        self,
        call: ModelCall,
        name: str,
        directory: SessionDirectory,
        output: AgentOutput,
        agent: RunningAgent | None,
    ) -> Answer:
        """Run a call in a slot of the pool, with the session's warm agent if there is one."""
        is_kept = False
        try:
            version = await self.launcher.version()
            state = self._read_state(call.state, directory, version)
            if agent is not None and agent.asked and not _answers(call, agent.asked):
                agent.token = ""  # the waiting turn cannot be continued
            agent = await self._prepare(agent, self._request(call, directory, state), state)
            # Until the turn has completed, this session of the agent must not be resumed.
            directory.write(_record(agent, ""))
            turn = await self._turn(agent, call, output)
            agent.token = uuid.uuid4().hex
            directory.write(_record(agent, agent.token))
            is_kept = not directory.is_temporary and agent.process.is_running
            if is_kept:
                seconds = call.approval_seconds if turn.request is not None else None
                self._pool.keep(name, agent, seconds or 0.0)
        finally:
            if not is_kept:
                await asyncio.shield(self._discard(agent))
        answer = Answer(items=output.items, usage=turn.usage, request=turn.request)
        if directory.is_temporary or not call.keeps_state:
            return answer
        saved = AgentState(
            session=agent.session.session_id,
            token=agent.token,
            mark=turn.mark,
            version=version or agent.session.version,
            work=str(directory.work),
            config=str(directory.config),
        )
        return replace(answer, state=self._state(call.model, msgspec.json.encode(saved)))

    async def _prepare(
        self, warm: RunningAgent | None, request: AgentRequest, state: AgentState | None
    ) -> RunningAgent:
        """Return an agent at the end of the state's session, or at the start of a new one.

        A warm process is used only if its last completed turn is that of the state.
        """
        directory = request.directory
        if warm is not None:
            if (
                state is not None
                and warm.process.is_running
                and warm.token == state.token
                and warm.options == request.options
            ):
                return warm
            await warm.process.finish()
            self._pool.unwatch(warm.process)
        directory.end_leftover()
        if state is None:
            directory.clear_config()
        elif not self._agent.is_saved(directory, state.session, state.mark):
            raise stale_session("the agent's files do not contain the last turn of this session")
        try:
            process = await self.launcher.start(request)
        except OSError as exc:
            if state is None or isinstance(exc, TimeoutError):
                raise
            # An agent with tools may have replaced its configuration by anything.
            raise stale_session(f"the agent's directory cannot be used: {exc.strerror}") from exc
        self._pool.watch(process)
        directory.write(AgentSessionRecord(process=process.identity, gateway=this_gateway()))
        try:
            session = await self._agent.open(process, request)
            if state is not None and session.session_id != state.session:
                raise stale_session(
                    f"the agent opened session {session.session_id}, not {state.session}",
                    "agent_session_changed",
                )
        except BaseException as exc:
            if isinstance(exc, ProviderFailure) and exc.provider_code == "agent_not_started":
                self.launcher.note_failure(exc)
            await asyncio.shield(process.kill())
            self._pool.unwatch(process)
            raise
        return RunningAgent(process=process, session=session, options=request.options)

    async def _turn(self, agent: RunningAgent, call: ModelCall, output: AgentOutput) -> AgentTurn:
        can_ask = call.approval_seconds is not None and self._settings.permissions != "none"
        if agent.asked:
            turn_input = TurnInput(is_allowed=call.permissions[agent.asked], can_ask=can_ask)
        else:
            is_new = call.state is None
            prompt = whole_prompt(call.items) if is_new else new_prompt(call.new_items)
            turn_input = TurnInput(prompt=prompt, can_ask=can_ask)
        agent.process.begin_turn()
        try:
            turn = await agent.session.run(turn_input, output)
        except ProviderFailure:
            output.end_part()
            if agent.process.exceeds_memory:
                limit = self._settings.memory_bytes
                raise agent_failure(f"the agent used more than {limit} bytes of memory") from None
            raise
        output.end_part()
        if turn.request is None:
            agent.asked = ""
            return turn
        agent.asked = turn.request.call_id
        return replace(turn, request=replace(turn.request, upstream=self.name))

    async def _discard(self, agent: RunningAgent | None) -> None:
        """Kill the process of a turn that did not complete, and release its slot."""
        if agent is not None:
            await agent.process.kill()
            self._pool.unwatch(agent.process)
        await self._pool.free()

    def _request(
        self, call: ModelCall, directory: SessionDirectory, state: AgentState | None
    ) -> AgentRequest:
        return AgentRequest(
            directory=directory,
            model=self._model_name(call.model),
            instructions=instructions_of(call.fields),
            permissions=self._settings.permissions,
            session_id=state.session if state is not None else None,
            mark=state.mark if state is not None else "",
            version=state.version if state is not None else "",
            new_session=str(uuid.uuid4()),
        )

    def _read_state(
        self, state: ProviderState | None, directory: SessionDirectory, version: str
    ) -> AgentState | None:
        """Return the state to resume; raise `stale_state` if it does not match this machine."""
        if state is None:
            return None
        try:
            decoded = msgspec.json.decode(state.value, type=AgentState)
        except msgspec.DecodeError as exc:
            raise stale_session("the state of the agent's session cannot be read") from exc
        if version and decoded.version != version:
            raise stale_session(
                f"the session was written by version {decoded.version}, this is {version}",
                "agent_version_changed",
            )
        if (decoded.work, decoded.config) != (str(directory.work), str(directory.config)):
            raise stale_session(
                f"the session belongs to {decoded.work}, not {directory.work}",
                "agent_directory_changed",
            )
        if decoded.token != directory.read().token:
            raise stale_session(
                "the agent's session does not end with the last turn", "agent_session_diverged"
            )
        return decoded

    def _state(self, model: str, value: bytes) -> ProviderState:
        return ProviderState(self.name, self._account, model, value)

    def _serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self._settings.models)

    def _model_name(self, model: str) -> str | None:
        """Return the agent's own name of the model: what follows the first slash."""
        if not _MODEL.fullmatch(model):
            raise InvalidInput(f"model: {model!r} is not a model of {self.name}", param="model")
        prefix, _, rest = model.partition("/")
        name = rest if prefix in (self._settings.api, self.name) and rest else model
        return None if name == DEFAULT_MODEL else name

    @asynccontextmanager
    async def _locked_work(self) -> AsyncIterator[None]:
        """Let sessions that share a working directory work in it one at a time."""
        if not self._settings.shared:
            yield
            return
        async with self._locked("shared"):
            yield

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        """Run one call of a session at a time: its earlier process may still be ending."""
        lock = self._locks.setdefault(name, _CountedLock())
        lock.users += 1
        try:
            async with lock.lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                self._locks.pop(name, None)


class _TimeLimit:
    """The time limit of a call: first for getting a process, then for the agent's turn."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.timeout = asyncio.timeout(WAIT_SECONDS)
        self._settings = settings
        self._has_process = False

    def begin_turn(self) -> None:
        """Start the time limit of the turn, once a process may be started."""
        self._has_process = True
        now = asyncio.get_running_loop().time()
        self.timeout.reschedule(now + self._settings.turn_seconds)

    def failure(self) -> ProviderFailure:
        """Return the failure for a call that exceeded its time."""
        if self._has_process:
            return agent_timeout(self._settings.turn_seconds)
        return agent_busy(WAIT_SECONDS, self._settings.max_processes)


class _CountedLock:
    """A lock that is removed when nobody uses it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


def _answers(call: ModelCall, request_id: str) -> bool:
    """Return whether a call only answers the agent's permission request."""
    kinds = [msgspec.json.decode(item).get("type") for item in call.new_items]
    return request_id in call.permissions and set(kinds) <= {"function_call_output"}


def _is_resumable(token: str, states: Iterable[ProviderState]) -> bool:
    """Whether a state names the last turn of an agent's session.

    Whose state it is does not matter: during a change of settings, two gateways of a machine have
    different accounts for the same directories.
    """
    return bool(token) and any(_token(state.value) == token for state in states)


def _token(value: bytes) -> str:
    """Return the token of an agent's state; empty if it cannot be read."""
    try:
        return msgspec.json.decode(value, type=AgentState).token
    except msgspec.DecodeError:
        return ""


def _record(agent: RunningAgent, token: str) -> AgentSessionRecord:
    return AgentSessionRecord(token=token, process=agent.process.identity, gateway=this_gateway())
