"""The Models API, in OpenAI's form and, for callers who send its version header, Anthropic's."""

from holdfast.simulator.apis.responses_input import require_known_model
from holdfast.simulator.state.call import ApiAnswer, Call
from holdfast.simulator.state.identity import EPOCH_SECONDS
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.scenario import DEFAULT_MODELS
from holdfast.simulator.state.world import World


def list_all(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/models."""
    names = world.scenario.models or list(DEFAULT_MODELS)
    data = [_model(call, name) for name in names]
    body: Json = {"object": "list", "data": data}
    if _is_anthropic(call):
        body = {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return ApiAnswer(body=body)


def retrieve(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/models/{model}."""
    name = call.parameters["model"]
    require_known_model(world, name)
    return ApiAnswer(body=_model(call, name), id=name)


def _is_anthropic(call: Call) -> bool:
    return "anthropic-version" in call.headers


def _model(call: Call, name: str) -> Json:
    if _is_anthropic(call):
        created = "2025-10-09T08:53:20Z"
        return {"type": "model", "id": name, "display_name": name, "created_at": created}
    return {"id": name, "object": "model", "created": EPOCH_SECONDS, "owned_by": "simulator"}
