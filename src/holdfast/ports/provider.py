"""The port to model providers: one call, answered whole or as a stream of events.

Events use the vocabulary of the Responses API, the richest one that the gateway serves. An adapter
for another API translates at its edge.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.model.items import NewItem
from holdfast.core.model.session import ProviderState, Usage
from holdfast.core.openai.stream_events import Delta


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One self-contained request to a model."""

    model: str
    items: Sequence[bytes]
    """The projected history and the new input, each item as its JSON."""
    fields: dict[str, msgspec.Raw] = {}
    """The other request fields, as the Responses API names them."""
    chat_fields: dict[str, msgspec.Raw] = {}
    """Request fields that only the Chat API has."""
    is_stream: bool = False
    session_id: str | None = None
    answer_seq: int = 0
    """The expected place of the answer in the session's log; ids end with it."""
    keeps_state: bool = True
    """Whether the provider may store this call for later ones."""
    state: ProviderState | None = None
    """What the provider has stored; it replaces all of `items` except `new_items`."""
    new_items: list[bytes] = []
    allows_opaque: bool = True
    """False after the provider refused encrypted content: send none."""
    is_plain: bool = False
    """True after the provider refused the form of a call: use the plainest form."""
    approval_seconds: float | None = None
    """How long a person may take to answer an agent's permission request; None if nobody can."""
    permissions: dict[str, bool] = {}
    """Answers to an agent's permission requests, by the ids of the calls."""


_encode = msgspec.json.Encoder().encode


def digest_call(hasher: blake2b, call: ModelCall) -> bytes:
    """Return the digest of a call; `hasher` already has its items."""
    params = (
        call.model,
        call.fields,
        call.chat_fields,
        call.keeps_state,
        call.allows_opaque,
        call.is_plain,
        call.state.covers_seq if call.state is not None else None,
        len(call.new_items),
    )
    hasher.update(b"\0")
    hasher.update(_encode(params))
    return hasher.digest()


class StateUse(msgspec.Struct, frozen=True):
    """How a provider stores state: under which slot, and whether a call changes it in place."""

    slot: str
    is_mutable: bool = False
    is_local: bool = False
    """Whether the state stays on this machine, so that a request not to store does not affect
    it."""


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an agent's own tool that a person must allow; the agent waits for the answer."""

    call_id: str
    upstream: str
    name: str
    arguments: str
    """Everything that is known about the call, as JSON."""


class TextAnswer(msgspec.Struct, frozen=True):
    """An answer that consists of one message with one text."""

    item: NewItem
    text: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A model's final answer, or the part of it before an agent asks for permission."""

    items: list[bytes]
    status: Literal["completed", "incomplete"] = "completed"
    incomplete_reason: str | None = None
    usage: Usage | None = None
    usage_detail: bytes | None = None
    """The provider's usage object; details that it left out are zero."""
    state: ProviderState | None = None
    """The stored state that the next call may chain to."""
    fields: dict[str, msgspec.Raw] = {}
    """Fields of the provider's response to copy into ours, such as `service_tier`."""
    plain: TextAnswer | None = None
    """The only item in decoded form, if the adapter has decoded it already."""
    request: PermissionRequest | None = None
    """The request that the agent waits for; a call with the answer in `permissions` continues."""


class ModelEvent(msgspec.Struct, frozen=True):
    """One stream event; `data` has every field except `sequence_number`."""

    type: str
    data: dict[str, Any]


AnyEvent = ModelEvent | Delta
"""Any event of a model's stream."""


def shift_output_index(event: AnyEvent, by: int) -> AnyEvent:
    """Return a model's event with its output index moved by `by` items of the gateway."""
    if not by:
        return event
    if isinstance(event, Delta):
        return replace(event, output_index=event.output_index + by)
    index = event.data.get("output_index")
    if not isinstance(index, int):
        return event
    return replace(event, data={**event.data, "output_index": index + by})


class EventSink(Protocol):
    """Receives the events of a stream as they arrive."""

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Write events that arrived together. False means that the caller must drain first."""
        ...

    async def drain(self) -> None:
        """Wait until more events may be written."""
        ...


class OutputSink(EventSink, Protocol):
    """An event sink that knows whether the client may have seen any output."""

    @property
    def has_output(self) -> bool:
        """Whether the model has sent any event; after that nothing is retried."""
        ...


StateUses = Callable[[str, Mapping[str, msgspec.Raw]], StateUse | None]


class Provider(Protocol):
    """Answers model calls. Failures are raised as `core.errors.ProviderFailure`."""

    @property
    def name(self) -> str:
        """The upstream's name."""
        ...

    def check(self, call: ModelCall) -> None:
        """Raise `InvalidInput` for a call that this provider cannot express.

        Long calls are checked in a thread, while others may be in progress.
        """
        ...

    @property
    def state_use(self) -> StateUses | None:
        """A function from a model, and a request's Chat fields, to how its state is stored, if it
        is; None if no model has state."""
        ...

    @property
    def detect(self) -> Callable[[], Awaitable[None]] | None:
        """A function that finds out in bounded time what the server speaks; None if that is known.

        It never raises. Afterwards the model may have another provider.
        """
        ...

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        ...

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Write events to `sink`, from the first `response.output_item.added`; return the answer.

        A stream that ends without its answer was cut off: raise.
        """
        ...

    async def models(self) -> list[dict[str, Any]]:
        """Return the served models, as the Models API lists them."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ByteSink(Protocol):
    """Receives a body as it arrives."""

    def write(self, piece: bytes) -> bool:
        """Write a piece. False means that the caller must drain before the next one."""
        ...

    async def drain(self) -> None:
        """Wait until another piece may be written."""
        ...


class RelayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to forward unchanged; `path` is relative to the upstream's /v1."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    model: str | None = None
    may_repeat: bool = False
    """Whether the request has no effect upstream, so that it may be sent twice."""


class RelayResponse(Protocol):
    """An upstream's response to forward; the caller must close it."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """The headers to forward to the client; names in lower case."""
        ...

    @property
    def outcome(self) -> str:
        """`completed`, the failure class, or `left` as long as neither is known."""
        ...

    async def read(self) -> bytes:
        """Return the whole body."""
        ...

    async def copy_to(self, sink: ByteSink) -> None:
        """Write the body to `sink` as it arrives."""
        ...

    async def close(self) -> None:
        """Release the connection."""
        ...


class UnavailableUpstream(msgspec.Struct, frozen=True):
    """An upstream whose models could not be listed, and why."""

    upstream: str
    message: str


class ModelListing(msgspec.Struct, frozen=True):
    """The models of all upstreams, and the upstreams that did not answer."""

    models: list[dict[str, Any]]
    unavailable: list[UnavailableUpstream] = []


class UpstreamFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt at an upstream; its message has no key and no content of the request."""

    at: float
    failure_class: str
    status: int | None
    message: str
    session_id: str | None = None
    turn_id: str | None = None


class UpstreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream as this process has seen it since it started."""

    name: str
    kind: str
    """What it speaks, or the agent that it is."""
    models: Sequence[str]
    answered_at: float | None
    """When the call began that was answered last."""
    failures: int
    """How many calls have failed since."""
    last_failure: UpstreamFailure | None


class Upstreams(Protocol):
    """All configured upstreams, and the routing of models to them."""

    def provider(self, model: str) -> Provider:
        """Return the provider that serves a model, or raise `ModelNotFound`."""
        ...

    def takes_chat(self, model: str, chat_fields: Mapping[str, msgspec.Raw]) -> bool:
        """Return whether a Chat request goes to its model's upstream as a Chat request."""
        ...

    def statuses(self) -> Sequence[UpstreamStatus]:
        """Return every upstream, in order of precedence."""
        ...

    async def detect(self, report: Callable[[str], None]) -> None:
        """Find out what the servers speak that have to be asked; report each in one line.

        What a server tells only later is reported then.
        """
        ...

    def wire_body(self, call: ModelCall) -> bytes | None:
        """Return the request body that the model's upstream gets for a call.

        None for a command-line agent, and if the body contains ids of the upstream's state.
        """
        ...

    def dropped_tools(self, model: str, fields: Mapping[str, msgspec.Raw]) -> Sequence[str]:
        """Return the types of hosted tools that a request would lose at the model's upstream."""
        ...

    async def models(self) -> ModelListing:
        """Return the models of all upstreams; raise if none of them answers."""
        ...

    async def relay(self, request: RelayRequest) -> RelayResponse | None:
        """Forward a request to its model's upstream, or to the first; None if there is none.

        The caller's credentials are not forwarded. Raise if the upstream refuses our own key.
        """
        ...
