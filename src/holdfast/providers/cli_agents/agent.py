"""The interface between the provider and one kind of command-line agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from holdfast.core.model.session import Usage
from holdfast.ports.provider import PermissionRequest
from holdfast.providers.cli_agents.directories import SessionDirectory
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.prompt import Prompt

Permissions = Literal["none", "read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """What a process of an agent is started for."""

    directory: SessionDirectory
    model: str | None
    """The model by the agent's own name; None for the agent's default."""
    instructions: str = ""
    permissions: Permissions = "none"
    session_id: str | None = None
    """The agent's session to resume; None for a new one."""
    mark: str = ""
    """The mark of the last turn of the session to resume."""
    new_session: str = ""
    """The id of a new session, for an agent that lets us choose it."""

    @property
    def options(self) -> tuple[str | None, str]:
        """What cannot change while a process runs."""
        return self.model, self.instructions


class Invocation(msgspec.Struct, frozen=True):
    """Arguments and variables with which an agent is started."""

    arguments: Sequence[str]
    variables: Mapping[str, str]


class TurnInput(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told to begin a turn, or to go on where it asked for permission."""

    prompt: Prompt = []
    is_allowed: bool | None = None
    """The answer to what the session asked for; None where a turn begins."""
    can_ask: bool = False
    """Whether somebody can answer requests for permission."""


class AgentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn of an agent ended, or why it waits; its output was written as it came."""

    usage: Usage | None = None
    mark: str = ""
    """What must be in the agent's own files before its session can be resumed; empty: nothing."""
    request: PermissionRequest | None = None
    """What the agent waits for in the middle of its turn."""


class AgentSession(Protocol):
    """A session of a running agent."""

    @property
    def session_id(self) -> str:
        """The agent's own id of the session."""
        ...

    async def run(self, given: TurnInput, output: AgentOutput) -> AgentTurn:
        """Run a turn to its end or to a request; raise `ProviderFailure` where the agent fails."""
        ...


class Agent(Protocol):
    """One kind of agent."""

    program: str
    """The program's usual name."""
    oldest_version: tuple[int, ...]
    """The oldest version that is known to work."""
    credentials: tuple[str, str]
    """The file with the agent's credentials: in the user's home, in a configuration directory."""
    supports_images: bool
    install_command: str
    """What installs the agent; empty where that is unknown."""
    login_command: str
    """What makes its credentials; empty where that is unknown."""

    def invocation(self, request: AgentRequest) -> Invocation:
        """Write the agent's configuration; return how to start it."""
        ...

    async def open(self, process: AgentProcess, request: AgentRequest) -> AgentSession:
        """Open the session of a started agent; raise `stale_state` where it is unknown."""
        ...

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return whether the agent's own files contain the end of the last turn."""
        ...


def home_file(home: Path, agent: Agent) -> Path:
    """Return where the agent's credentials are in the home of the gateway's user."""
    return home / agent.credentials[0]
