"""The kinds of servers the simulator can be."""

from dataclasses import dataclass
from typing import Literal

ProfileName = Literal[
    "openai", "azure-like", "chat-only", "ignores-previous-id", "strict-alternation", "anthropic"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How one kind of server differs from the others."""

    name: ProfileName
    apis: frozenset[str]
    """What it serves; everything else is 404."""
    needs_key: bool = True
    ignores_previous: bool = False
    strict_alternation: bool = False
    binds_state_to_model: bool = False
    """Stored state belongs to one deployment: other models do not find it."""
    router_texts: bool = False
    """Errors in the words of routers and local servers."""


_OPENAI = frozenset({"responses", "conversations", "chat", "models", "audio"})
_EVERYTHING = _OPENAI | {"messages"}

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="openai", apis=_EVERYTHING),
        Profile(name="azure-like", apis=_OPENAI, binds_state_to_model=True),
        Profile(
            name="chat-only",
            apis=frozenset({"chat", "models"}),
            needs_key=False,
            router_texts=True,
        ),
        Profile(
            name="ignores-previous-id",
            apis=frozenset({"responses", "chat", "models"}),
            needs_key=False,
            ignores_previous=True,
        ),
        Profile(
            name="strict-alternation",
            apis=frozenset({"chat", "models", "messages"}),
            needs_key=False,
            strict_alternation=True,
        ),
        Profile(name="anthropic", apis=frozenset({"messages", "models"})),
    )
}
