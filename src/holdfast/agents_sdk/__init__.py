"""Durable sessions for the OpenAI Agents SDK: a drop-in session and helpers around its runner.

Needs the extra: `pip install 'holdfast[agents]'`.
"""

try:
    import agents as _agents  # noqa: F401 - fail here, with a clear message
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "holdfast.agents_sdk needs an extra: pip install 'holdfast[agents]'", name=exc.name
    ) from exc

from holdfast.agents_sdk.compaction import Compaction, openai_compaction
from holdfast.agents_sdk.guard import GuardedConversation, Missing, guard
from holdfast.agents_sdk.runner import HoldfastRunner
from holdfast.agents_sdk.session import HoldfastSession
from holdfast.core.errors import RunStateUsed, SessionClosed

__all__ = [
    "Compaction",
    "GuardedConversation",
    "HoldfastRunner",
    "HoldfastSession",
    "Missing",
    "RunStateUsed",
    "SessionClosed",
    "guard",
    "openai_compaction",
]
