"""The OpenAI Agents SDK, made safe: a session to drop in, and helpers around its runner.

Needs the extra: `pip install 'holdfast[agents]'`.
"""

try:
    import agents as _agents  # noqa: F401 - said plainly here, before anything else fails
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "holdfast.agents_sdk needs the extra: pip install 'holdfast[agents]'", name=exc.name
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
