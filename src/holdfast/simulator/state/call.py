"""One call and its answer, independent of the transport."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.simulator.faults.effects import Effect
from holdfast.simulator.state.identity import IdSequence
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import ProviderAccount, StoredResponse
from holdfast.simulator.state.scenario import Script
from holdfast.simulator.state.sealing import Owner

E = TypeVar("E", bound=Effect)


@dataclass(slots=True, kw_only=True)
class Call:
    """A request, its account and the faults that apply to it."""

    number: int
    api: str
    operation: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes
    body: Json
    parameters: dict[str, str]
    account: ProviderAccount
    ids: IdSequence
    now: int
    effects: list[Effect] = field(default_factory=list)
    script: Script | None = None
    is_json: bool = True
    """Whether the body could be read as a JSON object; an unreadable one is an empty object."""
    socket_memory: dict[str, StoredResponse] | None = None
    """On a WebSocket: responses that only the connection stores (store=false)."""

    model: str = field(init=False)
    """The requested model; empty when there is none."""

    def __post_init__(self) -> None:
        model = self.body.get("model") or self.parameters.get("model")
        self.model = model if isinstance(model, str) else ""

    @property
    def account_key(self) -> str:
        """The key of the account."""
        return self.account.key

    @property
    def text(self) -> str:
        """The body as text."""
        return self.raw.decode("utf-8", "replace")

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.body.get("stream") is True or self.query.get("stream") == "true"

    @property
    def owner(self) -> Owner:
        """The owner of encrypted content that this call's model makes."""
        return Owner(self.account.key, self.model)

    def effect(self, kind: type[E]) -> E | None:
        """Return the first fault of this kind that applies to the call."""
        if not self.effects:
            return None
        return next((found for found in self.effects if isinstance(found, kind)), None)


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """One event of a stream; `name` None sends bare data."""

    name: str | None
    data: Json
    is_terminal: bool = False


def _nothing() -> None:
    return None


@dataclass(slots=True, kw_only=True)
class ApiAnswer:
    """An answer, and what the provider stores when it is sent."""

    status: int = 200
    body: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    events: list[StreamedEvent] | None = None
    """The stream; None when the answer is one JSON body."""
    ends_with_done: bool = False
    """The stream closes with `data: [DONE]`."""
    commit: Callable[[], None] = _nothing
    """Store the result; called once, just before the client can see it."""
    release: Callable[[], None] = _nothing
    """Release what the call holds; always called."""
    begin: Callable[[], None] = _nothing
    """Called when the work starts."""
    is_background: bool = False
    """The answer is sent at once; the work continues, and commits and releases at its end."""
    never_ends: bool = False
    """The stream stays open after its last event."""
    between_seconds: float = 0.0
    id: str | None = None
    """The id of the created object, for the record."""
    fault: str | None = None
    """The catalogue id, if the answer is a fault."""
