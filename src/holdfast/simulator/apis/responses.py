"""The Responses API: create, retrieve, delete, cancel, input items, compaction, token counts."""

from holdfast.simulator.apis.pages import page
from holdfast.simulator.apis.responses_events import (
    cancelled_events,
    events_of,
    failing_events,
    overflow_events,
)
from holdfast.simulator.apis.responses_input import (
    ResponseInput,
    as_items,
    check_items,
    read_response_input,
    require_known_model,
    summarize,
)
from holdfast.simulator.apis.responses_output import make_response
from holdfast.simulator.delivery.errors import (
    Problem,
    catalogue_problem,
    invalid,
    missing,
    not_found,
)
from holdfast.simulator.faults.effects import Cancelled, Failed, Forget, Overflow, Unlink
from holdfast.simulator.state.call import ApiAnswer, Call, StreamedEvent
from holdfast.simulator.state.identity import digest
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.memory import StoredResponse
from holdfast.simulator.state.sealing import seal
from holdfast.simulator.state.tokens import count_items, count_text
from holdfast.simulator.state.world import World


def create(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/responses."""
    overflow = call.effect(Overflow)
    if call.body.get("background") is True and call.body.get("store") is False:
        raise invalid("Background mode requires 'store' to be true.", "background")
    try:
        request = read_response_input(world, call)
    except Problem as problem:
        wants_event = call.is_stream and world.scenario.overflow == "stream"
        if problem.fault != "R10" or not wants_event:
            raise
        return _overflowing(world, call)
    if overflow is not None and overflow.at == "stream" and call.is_stream:
        return _overflowing(world, call)
    if request.conversation is not None and request.conversation.locked_by is not None:
        raise catalogue_problem("R08")
    made = make_response(world, call, request)
    if request.conversation is not None:
        request.conversation.locked_by = call.number
    return _answer(world, call, request, made.response, made.between_seconds)


def _overflowing(world: World, call: Call) -> ApiAnswer:
    request = ResponseInput(
        prior=[], items=[], parent=None, conversation=None, input_tokens=0, prior_tokens=0
    )
    response = make_response(world, call, request).response
    return ApiAnswer(events=overflow_events(response), id=response["id"], fault="R11")


def _answer(
    world: World, call: Call, request: ResponseInput, response: Json, between_seconds: float
) -> ApiAnswer:
    stored = StoredResponse(
        id=response["id"],
        model=call.model,
        created_at=call.now,
        response=response,
        input_items=request.items,
        parent=request.parent,
    )

    def commit() -> None:
        _keep(world, call, request, stored)

    def release() -> None:
        if request.conversation is not None:
            request.conversation.locked_by = None

    answer = ApiAnswer(
        body=response,
        events=_events(call, response) if call.is_stream else None,
        ends_with_done=True,
        never_ends=response["status"] == "queued",
        commit=commit,
        release=release,
        between_seconds=between_seconds,
        id=response["id"],
    )
    if call.body.get("background") is True:
        _put_in_background(call, stored, answer)
    return answer


def _put_in_background(call: Call, stored: StoredResponse, answer: ApiAnswer) -> None:
    """Make the response retrievable at once, unfinished until its work is done."""
    final, finish = stored.response, answer.commit
    early: Json = {"output": [], "usage": None, "completed_at": None, "status": "queued"}
    stored.response = final | early
    call.account.responses[stored.id] = stored
    answer.body = stored.response
    answer.is_background = not call.is_stream

    def begin() -> None:
        if stored.response["status"] == "queued" and final["status"] != "queued":
            stored.response = stored.response | {"status": "in_progress"}

    def commit() -> None:
        if stored.response["status"] != "cancelled":
            stored.response = final
            finish()

    answer.begin = begin
    answer.commit = commit


def _events(call: Call, response: Json) -> list[StreamedEvent]:
    failed, cancelled = call.effect(Failed), call.effect(Cancelled)
    if failed is not None:
        return failing_events(response, failed.event, failed.style)
    if cancelled is not None:
        return cancelled_events(response, cancelled.event)
    return events_of(response)


def _keep(world: World, call: Call, request: ResponseInput, stored: StoredResponse) -> None:
    """Store the input and output, as far as the request and the faults allow."""
    is_forgotten = call.effect(Forget) is not None
    is_stored = call.body.get("store") is not False and not is_forgotten
    _unlink(world, call, request)
    if is_stored or request.conversation is not None:
        stored.input_items = with_ids(request.items, stored.id)
    if stored.response["status"] in ("failed", "cancelled"):
        stored.response = stored.response | {"output": []}
    elif (
        request.conversation is not None
        and stored.response["status"] != "queued"
        and not is_forgotten
    ):
        added = [*stored.input_items, *stored.response["output"]]
        request.conversation.items += added
        call.account.keep_items(added, created_at=call.now, owner_id=request.conversation.id)
    if call.socket_memory is not None:
        call.socket_memory.clear()
        call.socket_memory[stored.id] = stored
    if is_stored:
        call.account.keep(stored)


def _unlink(world: World, call: Call, request: ResponseInput) -> None:
    """Remove the earlier assistant items of each conversation that the call uses (R16)."""
    if not world.unlinks(call.model) and call.effect(Unlink) is None:
        return
    touched = {request.conversation.id} if request.conversation is not None else set()
    for item in request.items:
        known = call.account.items.get(str(item.get("id")))
        if known is not None:
            touched.add(known.owner_id)
    for owner_id in touched:
        conversation = call.account.conversations.get(owner_id)
        if conversation is not None:
            conversation.unlink_assistant_items()


def with_ids(items: list[Json], root: str) -> list[Json]:
    """Return `items`, each with an id; those that had none get one that depends on `root`."""
    return [
        item if item.get("id") else {"id": _id_of(item, f"{root}/{number}"), **item}
        for number, item in enumerate(items)
    ]


def in_full(item: Json) -> Json:
    """Return a user's message with the fields that it may leave out when it is sent."""
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    parts = [_part_in_full(part) for part in content or []]
    return {**item, "status": "completed", "content": parts}


def _part_in_full(part: Json) -> Json:
    known = {name: value for name, value in part.items() if value is not None}
    if known.get("type") == "input_image":
        return {"detail": "auto", "image_url": None, **known}
    return known


_PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
}


def _id_of(item: Json, root: str) -> str:
    return _PREFIXES.get(item["type"], "item_") + digest(root)


def _find(world: World, call: Call) -> StoredResponse:
    response_id = call.parameters["id"]
    stored = world.find_response(call, response_id)
    if stored is None:
        raise not_found(f"Response with id '{response_id}' not found.")
    return stored


def retrieve(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/responses/{id}, as JSON or as its events again."""
    stored = _find(world, call)
    if not call.is_stream:
        return ApiAnswer(body=stored.response, id=stored.id)
    if stored.response["status"] == "in_progress":
        raise invalid("This response is still in progress and cannot be streamed.", None)
    after = call.query.get("starting_after", "-1")
    if not after.lstrip("-").isdigit():
        raise invalid("Invalid 'starting_after': expected an integer.", "starting_after")
    events = [
        event for event in events_of(stored.response) if event.data["sequence_number"] > int(after)
    ]
    return ApiAnswer(events=events, ends_with_done=True, id=stored.id)


def delete(world: World, call: Call) -> ApiAnswer:
    """Answer DELETE /v1/responses/{id}."""
    stored = _find(world, call)
    call.account.forget_owner(stored.id)
    return ApiAnswer(body={"id": stored.id, "object": "response", "deleted": True}, id=stored.id)


def cancel(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/responses/{id}/cancel: only background responses can be cancelled."""
    stored = _find(world, call)
    if stored.response["background"] is not True:
        raise invalid("Cannot cancel a synchronous response.", None)
    if stored.response["status"] in ("queued", "in_progress"):
        stored.response = stored.response | {"status": "cancelled"}
    return ApiAnswer(body=stored.response, id=stored.id)


def input_items(world: World, call: Call) -> ApiAnswer:
    """Answer GET /v1/responses/{id}/input_items."""
    stored = _find(world, call)
    items = stored.parent.context() if stored.parent else []
    shown = with_ids(items + stored.input_items, stored.id)
    return ApiAnswer(body=page(shown, call.query), id=stored.id)


def input_tokens(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/responses/input_tokens."""
    request = read_response_input(world, call)
    return ApiAnswer(body={"object": "response.input_tokens", "input_tokens": request.input_tokens})


def compact(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/responses/compact: the user's messages, and one opaque item for the rest."""
    if not call.model:
        raise missing("model")
    require_known_model(world, call.model)
    context: list[Json] = []
    parent_id = call.body.get("previous_response_id")
    if parent_id:
        parent = world.find_response(call, parent_id)
        if parent is None:
            raise catalogue_problem("R02", id=parent_id)
        context = parent.context()
    context += check_items(world, call, context, as_items(call.body.get("input")))
    kept = [item for item in context if item.get("role") == "user"]
    hidden = summarize(call, context).messages - len(kept)
    compaction = {
        "id": call.ids.new("cmp_"),
        "type": "compaction",
        "encrypted_content": seal(call.owner, str(hidden)),
    }
    used, output_tokens = count_items(context), count_text(compaction["encrypted_content"])
    body = {
        "id": call.ids.new("resp_"),
        "object": "response.compaction",
        "created_at": call.now,
        "output": [*map(in_full, with_ids(kept, call.ids.root)), compaction],
        "usage": {
            "input_tokens": used,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used + output_tokens,
        },
    }
    return ApiAnswer(body=body, id=str(body["id"]))
