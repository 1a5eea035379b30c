"""The real programs of the agents, installed once outside the checkout."""

import platform
from functools import cache
from pathlib import Path

from tests.clients.environments import apt_program, node_with

HERE = Path(__file__).parent
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def _target() -> str:
    return f"{platform.system().lower()}-{_MACHINES[platform.machine()]}"


@cache
def claude() -> Path:
    """Return the program of Claude Code."""
    packages = node_with(HERE / "npm/claude-code/package.json")
    return packages / f"@anthropic-ai/claude-code-{_target()}/claude"


@cache
def codex() -> Path:
    """Return the program of Codex."""
    packages = node_with(HERE.parent / "clients/codex/package.json")
    return next((packages / f"@openai/codex-{_target()}/vendor").glob("*/bin/codex"))


@cache
def opencode() -> Path:
    """Return the program of opencode."""
    packages = node_with(HERE / "npm/opencode/package.json")
    return packages / f"opencode-{_target()}/bin/opencode"


@cache
def bubblewrap() -> Path:
    """Return the sandbox's program, from the system's packages."""
    found = apt_program("bubblewrap", "bwrap")
    assert found, "bubblewrap is not installed, and could not be"
    return Path(found)
