"""Holdfast: a durable session layer and gateway for LLM agents.

Importing this package is cheap: everything heavier than the version loads when it is first used.
"""

from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.app import open  # noqa: A004
    from holdfast.core.errors import HoldfastError
    from holdfast.core.model.reset_policy import ResetPolicy
    from holdfast.core.model.session import ProviderState, Usage
    from holdfast.engine.embedded.api import Holdfast, SessionHandle
    from holdfast.engine.embedded.turn_handle import TurnHandle
    from holdfast.engine.settings import LaneSettings

_HOMES = {
    "open": "holdfast.app",
    "Holdfast": "holdfast.engine.embedded.api",
    "HoldfastError": "holdfast.core.errors",
    "LaneSettings": "holdfast.engine.settings",
    "ProviderState": "holdfast.core.model.session",
    "ResetPolicy": "holdfast.core.model.reset_policy",
    "SessionHandle": "holdfast.engine.embedded.api",
    "TurnHandle": "holdfast.engine.embedded.turn_handle",
    "Usage": "holdfast.core.model.session",
}

__all__ = [
    "Holdfast",
    "HoldfastError",
    "LaneSettings",
    "ProviderState",
    "ResetPolicy",
    "SessionHandle",
    "TurnHandle",
    "Usage",
    "__version__",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
