"""Which handler answers which method and path."""

from dataclasses import dataclass, field

from holdfast.simulator.apis import (
    audio,
    chat,
    conversations,
    messages,
    models,
    responses,
)
from holdfast.simulator.delivery.exchange import Handler


@dataclass(frozen=True, slots=True)
class Route:
    """A place of an API."""

    api: str
    operation: str
    handler: Handler


@dataclass(frozen=True, slots=True)
class Found:
    """A route and what its path says."""

    route: Route
    parameters: dict[str, str] = field(default_factory=dict)


def _table() -> list[tuple[str, str, Route]]:
    def responses_route(name: str, handler: Handler) -> Route:
        return Route("responses", name, handler)

    def conversation_route(name: str, handler: Handler) -> Route:
        return Route("conversations", name, handler)

    def chat_route(name: str, handler: Handler) -> Route:
        return Route("chat", name, handler)

    response_path = "/v1/responses/{id}"
    talk = "/v1/conversations/{id}"
    item = talk + "/items/{item_id}"
    stored = "/v1/chat/completions/{id}"
    return [
        ("POST", "/v1/responses", responses_route("create", responses.create)),
        ("POST", "/v1/responses/compact", responses_route("compact", responses.compact)),
        ("POST", "/v1/responses/input_tokens", responses_route("count", responses.input_tokens)),
        ("GET", response_path, responses_route("retrieve", responses.retrieve)),
        ("DELETE", response_path, responses_route("delete", responses.delete)),
        ("POST", response_path + "/cancel", responses_route("cancel", responses.cancel)),
        (
            "GET",
            response_path + "/input_items",
            responses_route("list_items", responses.input_items),
        ),
        ("POST", "/v1/conversations", conversation_route("create", conversations.create)),
        ("GET", talk, conversation_route("retrieve", conversations.retrieve)),
        ("POST", talk, conversation_route("update", conversations.update)),
        ("DELETE", talk, conversation_route("delete", conversations.delete)),
        ("POST", talk + "/items", conversation_route("create_items", conversations.create_items)),
        ("GET", talk + "/items", conversation_route("list_items", conversations.list_items)),
        ("GET", item, conversation_route("retrieve_item", conversations.retrieve_item)),
        ("DELETE", item, conversation_route("delete_item", conversations.delete_item)),
        ("POST", "/v1/chat/completions", chat_route("create", chat.create)),
        ("GET", "/v1/chat/completions", chat_route("list", chat.list_all)),
        ("GET", stored, chat_route("retrieve", chat.retrieve)),
        ("POST", stored, chat_route("update", chat.update)),
        ("DELETE", stored, chat_route("delete", chat.delete)),
        ("GET", stored + "/messages", chat_route("list_messages", chat.list_messages)),
        ("POST", "/v1/audio/transcriptions", Route("audio", "create", audio.transcribe)),
        ("GET", "/v1/models", Route("models", "list", models.list_all)),
        ("GET", "/v1/models/{model}", Route("models", "retrieve", models.retrieve)),
    ]


_OTHERS = [
    ("POST", "/v1/messages", Route("messages", "create", messages.create)),
    ("POST", "/v1/messages/count_tokens", Route("messages", "count", messages.count_tokens)),
    ("POST", "/openai/deployments/{model}/chat/completions", Route("chat", "create", chat.create)),
]


class RouteTable:
    """All routes; the fixed ones are found at once, the others segment by segment."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], Found] = {}
        self._open: list[tuple[str, list[str], Route]] = []
        for method, path, route in [*_table(), *_OTHERS]:
            if "{" in path:
                self._open.append((method, path.split("/"), route))
            else:
                self._fixed[method, path] = Found(route)

    def find(self, method: str, path: str) -> Found | None:
        """Return the route of a call, or None when there is none."""
        found = self._fixed.get((method, path))
        if found is not None:
            return found
        segments = as_v1(path).split("/")
        found = self._fixed.get((method, "/".join(segments)))
        return found or self._search(method, segments)

    def knows_path(self, path: str) -> bool:
        """Say whether any method is served at `path`."""
        return any(self.find(method, path) for method in ("GET", "POST", "DELETE"))

    def _search(self, method: str, segments: list[str]) -> Found | None:
        for known, pattern, route in self._open:
            if known == method and len(pattern) == len(segments):
                parameters = _fit(pattern, segments)
                if parameters is not None:
                    return Found(route, parameters)
        return None


def _fit(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    parameters = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            if not given:
                return None
            parameters[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return parameters


def as_v1(path: str) -> str:
    """Return an Azure-style path as OpenAI writes it, and any other path as it is."""
    if path.startswith("/openai/v1/"):
        return path[len("/openai") :]
    if path.startswith("/openai/") and not path.startswith("/openai/deployments/"):
        return "/v1" + path[len("/openai") :]
    return path.rstrip("/") or "/"
