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
    """What an agent's process is started with."""

    directory: SessionDirectory
    model: str | None
    """The model by the agent's own name; None for the agent's default."""
    instructions: str = ""
    permissions: Permissions = "none"
    session_id: str | None = None
    """The agent's session to resume; None for a new one."""
    mark: str = ""
    """The mark of the last turn of the session to resume."""
    version: str = ""
    """The version that wrote the session to resume; empty if it is compared before the start."""
    new_session: str = ""
    """The id for a new session, if the agent lets the gateway choose it."""

    @property
    def options(self) -> tuple[str | None, str]:
        """Options that cannot change while a process runs."""
        return self.model, self.instructions


class Invocation(msgspec.Struct, frozen=True):
    """Command-line arguments and environment variables to start an agent with."""

    arguments: Sequence[str]
    variables: Mapping[str, str]


class TurnInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input that starts a turn of an agent, or answers its permission request."""

    prompt: Prompt = []
    is_allowed: bool | None = None
    """The answer to the session's permission request; None if a turn starts."""
    can_ask: bool = False
    """Whether somebody can answer permission requests."""


class AgentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an agent's turn, or what it waits for; its output was written as it arrived."""

    usage: Usage | None = None
    mark: str = ""
    """What the agent's own files must contain before its session can be resumed; empty if
    nothing."""
    request: PermissionRequest | None = None
    """The permission request that the agent waits for in the middle of its turn."""


class AgentSession(Protocol):
    """A session of a running agent."""

    @property
    def session_id(self) -> str:
        """The agent's own session id."""
        ...

    @property
    def version(self) -> str:
        """The version that the running agent tells; empty if its program tells it."""
        ...

    async def run(self, turn_input: TurnInput, output: AgentOutput) -> AgentTurn:
        """Run a turn to its end or a permission request; raise `ProviderFailure` if it fails."""
        ...


class Agent(Protocol):
    """One kind of agent."""

    program: str
    """The program's usual name."""
    oldest_version: tuple[int, ...]
    """The oldest version that is known to work; empty for an agent that tells its version when it
    runs, and not as a program with `--version`."""
    credentials: tuple[str, str]
    """The credentials file: its path in the user's home, and in a configuration directory."""
    supports_images: bool
    install_command: str
    """The command that installs the agent; empty if unknown."""
    login_command: str
    """The command that creates its credentials; empty if unknown."""

    def invocation(self, request: AgentRequest) -> Invocation:
        """Write the agent's configuration; return how to start it."""
        ...

    async def open(self, process: AgentProcess, request: AgentRequest) -> AgentSession:
        """Open the session of a started agent; raise `stale_state` if the agent lacks it."""
        ...

    def is_saved(self, directory: SessionDirectory, session_id: str, mark: str) -> bool:
        """Return whether the agent's own files contain the end of the last turn."""
        ...


def home_file(home: Path, agent: Agent) -> Path:
    """Return the path of the agent's credentials in the home of the gateway's user."""
    return home / agent.credentials[0]
