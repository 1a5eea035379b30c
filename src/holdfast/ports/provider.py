"""What we need from whoever answers: one call, whole or as a stream of events.

Events are in the Responses API's own vocabulary, because it is the richest we serve; a provider
that speaks another translates at its edge.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.session import Usage
from holdfast.core.openai.stream_events import Delta


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model, complete in itself."""

    model: str
    items: Sequence[bytes]
    """The whole projected history and the new input, as the bytes of its items."""
    fields: dict[str, msgspec.Raw] = {}
    """Everything else that was asked, in the words of the Responses API."""
    chat_fields: dict[str, msgspec.Raw] = {}
    """What a Chat client asked in words that only the Chat API has."""
    is_stream: bool = False
    session_id: str | None = None
    keeps_state: bool = True
    """Whether the provider may keep anything of this call for later ones."""
    state: ProviderState | None = None
    """What the provider remembers; it stands for all of `items` but `new_items`."""
    new_items: list[bytes] = []
    allows_opaque: bool = True
    """False once the provider has refused sealed content: then the call is made without any."""
    is_plain: bool = False
    """True once the provider has refused the form of a call: then it is made in the plainest."""


class StateUse(msgspec.Struct, frozen=True):
    """How a provider remembers: under which slot, and whether a call changes it in place."""

    slot: str
    is_mutable: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model said, in the end."""

    items: list[bytes]
    status: Literal["completed", "incomplete"] = "completed"
    incomplete_reason: str | None = None
    usage: Usage | None = None
    usage_detail: bytes | None = None
    """The usage object as the provider wrote it, with the details that it left out as none."""
    state: ProviderState | None = None
    """What may be chained to, if the provider stored it."""
    fields: dict[str, msgspec.Raw] = {}
    """Fields of the provider's response that belong to ours (service_tier and the like)."""


class ModelEvent(msgspec.Struct, frozen=True):
    """One event of a stream, without its number; `data` has every field but `sequence_number`."""

    type: str
    data: dict[str, Any]


AnyEvent = ModelEvent | Delta
"""What a model says as it goes."""


class Listener(Protocol):
    """Somebody who hears what a model says, while it says it."""

    def hear(self, events: Sequence[AnyEvent]) -> bool:
        """Take in what came together; return whether more may follow at once."""
        ...

    async def room(self) -> None:
        """Wait until more may follow."""
        ...


class Provider(Protocol):
    """Somebody who answers. Failures are raised as `core.errors.ProviderFailure`."""

    @property
    def name(self) -> str:
        """The upstream's name."""
        ...

    def check(self, call: ModelCall) -> None:
        """Raise `InvalidInput` for what this provider cannot be asked, before anything is kept."""
        ...

    def state_use(self, model: str) -> StateUse | None:
        """Return how the provider remembers calls of a model; None when it is told all anew."""
        ...

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        ...

    async def stream(self, call: ModelCall, listener: Listener) -> Answer:
        """Have the listener hear events as they come, from the first `response.output_item.added`
        on, and return the answer. A stream that ends without its answer was cut off and raises."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """Return the models it serves, as the Models API lists them."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Sink(Protocol):
    """Somebody who takes a body as it comes."""

    def take(self, piece: bytes) -> bool:
        """Take a piece; return whether another may follow at once."""
        ...

    async def room(self) -> None:
        """Wait until another piece may follow."""
        ...


class RelayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is passed on as it came; `path` begins behind the upstream's /v1."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    model: str | None = None
    may_repeat: bool = False
    """Whether it keeps nothing where it goes, so that it may come there twice."""


class Relayed(Protocol):
    """An upstream's answer, to be passed on as it comes; it must be closed."""

    @property
    def status(self) -> int:
        """Its status."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Its headers, as far as they concern the client; names in lower case."""
        ...

    async def read(self) -> bytes:
        """Return the whole body."""
        ...

    async def pour(self, sink: Sink) -> None:
        """Have the body taken as it comes."""
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...


class Unavailable(msgspec.Struct, frozen=True):
    """An upstream that could not be asked for its models, and why."""

    upstream: str
    message: str


class Listing(msgspec.Struct, frozen=True):
    """The models that can be asked for, and who could not say theirs."""

    models: list[dict[str, Any]]
    unavailable: list[Unavailable] = []


class Upstreams(Protocol):
    """All who answer, and which of them for which model."""

    def provider(self, model: str) -> Provider:
        """Return who serves a model, or raise `ModelNotFound`."""
        ...

    def speaks(self, model: str) -> Literal["responses", "chat"] | None:
        """Return the API in which the model's upstream is asked; None where there is no server."""
        ...

    async def models(self) -> Listing:
        """Return every model that can be asked for; a failure where no upstream can say."""
        ...

    async def relay(self, request: RelayRequest) -> Relayed | None:
        """Pass a request on to the upstream of its model, or to the first; None if there is none.

        No credential of the caller is passed on, and a refusal of ours is raised as a failure.
        """
        ...
