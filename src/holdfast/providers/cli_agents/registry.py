"""The known kinds of command-line agents."""

from holdfast.providers.cli_agents.agent import Agent
from holdfast.providers.cli_agents.kinds.acp import AcpAgent
from holdfast.providers.cli_agents.kinds.claude_code import ClaudeCode
from holdfast.providers.cli_agents.kinds.codex import Codex
from holdfast.providers.cli_agents.provider import CliAgentProvider
from holdfast.providers.items.ids import NewId
from holdfast.providers.settings import UpstreamSettings


def agent_of(settings: UpstreamSettings) -> Agent:
    """Return the kind of agent that an upstream is."""
    if settings.api == "claude-code":
        return ClaudeCode()
    if settings.api == "codex":
        return Codex()
    if settings.api == "acp":
        return AcpAgent()
    raise ValueError(f"{settings.api} is not a command-line agent")


def open_agent(settings: UpstreamSettings, new_id: NewId) -> CliAgentProvider:
    """Return the provider of an upstream that is an agent."""
    return CliAgentProvider(settings, agent_of(settings), new_id)
