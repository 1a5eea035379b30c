"""What the provider stores for each account: responses, items, conversations, completions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.simulator.state.identity import digest
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.scenario import ForgetSettings


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """A response, its input, and the response before it."""

    id: str
    model: str
    created_at: int
    response: Json
    input_items: list[Json]
    parent: "StoredResponse | None" = None

    def context(self) -> list[Json]:
        """Return the input of the next response in the chain, oldest first."""
        chain: list[StoredResponse] = []
        link: StoredResponse | None = self
        while link is not None:
            chain.append(link)
            link = link.parent
        items: list[Json] = []
        for link in reversed(chain):
            items += link.input_items
            items += link.response["output"]
        return items


@dataclass(slots=True, kw_only=True)
class ProviderConversation:
    """A conversation: its items in order, and the call that is using it."""

    id: str
    created_at: int
    metadata: Json
    items: list[Json] = field(default_factory=list)
    locked_by: int | None = None
    """The number of the call that is running on it."""

    def as_object(self) -> Json:
        """Return it as the API shows it."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def unlink_assistant_items(self) -> int:
        """Remove the assistant's messages and the reasoning before them; return how many items."""
        kept: list[Json] = []
        for item in self.items:
            if item.get("role") != "assistant":
                kept.append(item)
                continue
            while kept and kept[-1].get("type") == "reasoning":
                kept.pop()
        removed = len(self.items) - len(kept)
        self.items = kept
        return removed


@dataclass(slots=True, kw_only=True)
class ConversationItem:
    """An item that may be named by its id."""

    item: Json
    created_at: int
    owner_id: str
    """The response or conversation that it came with."""


@dataclass(slots=True, kw_only=True)
class ProviderAccount:
    """Everything stored for one key."""

    key: str
    serial: int = 0
    """How many calls it has made."""
    responses: dict[str, StoredResponse] = field(default_factory=dict)
    items: dict[str, ConversationItem] = field(default_factory=dict)
    conversations: dict[str, ProviderConversation] = field(default_factory=dict)
    completions: dict[str, Json] = field(default_factory=dict)
    completion_messages: dict[str, list[Json]] = field(default_factory=dict)

    def keep(self, stored: StoredResponse) -> None:
        """Store a response and its items."""
        self.responses[stored.id] = stored
        self.keep_items(stored.input_items, created_at=stored.created_at, owner_id=stored.id)
        self.keep_items(stored.response["output"], created_at=stored.created_at, owner_id=stored.id)

    def keep_items(self, items: Iterable[Json], *, created_at: int, owner_id: str) -> None:
        """Store items by id; items without one cannot be referenced."""
        for item in items:
            item_id = item.get("id")
            if isinstance(item_id, str) and item_id not in self.items:
                self.items[item_id] = ConversationItem(
                    item=item, created_at=created_at, owner_id=owner_id
                )

    def forget_owner(self, owner_id: str) -> bool:
        """Delete one response or conversation with its items; return whether it existed."""
        known = self.responses.pop(owner_id, None) or self.conversations.pop(owner_id, None)
        gone = [key for key, stored in self.items.items() if stored.owner_id == owner_id]
        for item_id in gone:
            del self.items[item_id]
        return known is not None

    def forget_everything(self) -> int:
        """Delete everything and return how many responses and conversations there were."""
        count = len(self.responses) + len(self.conversations)
        self.responses.clear()
        self.items.clear()
        self.conversations.clear()
        self.completions.clear()
        self.completion_messages.clear()
        return count


@dataclass(slots=True, kw_only=True)
class Forgetting:
    """The rules by which stored objects expire."""

    seed: int
    settings: ForgetSettings

    def has_forgotten(self, *, owner_id: str, created_at: int, now: int) -> bool:
        """Whether an object of `owner_id` has expired."""
        oldest = self.settings.after_seconds
        if oldest is not None and now - created_at > oldest:
            return True
        return is_chosen(self.settings.chance, self.seed, "forget", owner_id)


def is_chosen(chance: float, *parts: object) -> bool:
    """Whether chance selects `parts`; the same parts always give the same answer."""
    if chance <= 0.0:
        return False
    return chance >= 1.0 or int(digest(*parts, size=4), 16) / 0x1_0000_0000 < chance
